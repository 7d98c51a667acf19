"""Which way of grouping is best here, and is any worth it?"""

from ._best import Best as Best
from ._executors import Chunk as Chunk
from ._executors import Executor as Executor
from ._external import External as External
from ._filled import verdict_from_csv as verdict_from_csv
from ._info import ProblemInfo as ProblemInfo
from ._lab import Lab as Lab
from ._noise import row_stderr as row_stderr
from ._plan import Plan as Plan
from ._plan import plan as plan
from ._progress import Progress as Progress
from ._record import Cost as Cost
from ._record import Outcome as Outcome
from ._record import Record as Record
from ._results import Results as Results
from ._store import Store as Store
from ._store import StoreError as StoreError
from ._study import Study as Study
from ._verdict import Verdict as Verdict
from .methods import Method as Method
from .methods import make_method as make_method
from .methods import method_names as method_names
from .methods import register_method as register_method
