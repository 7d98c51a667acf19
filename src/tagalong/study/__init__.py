"""Which way of grouping is best here, and is any worth it?"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tagalong._progress import Progress as Progress

    from ._best import Best as Best
    from ._executors import Chunk as Chunk
    from ._executors import Executor as Executor
    from ._executors import make_executor as make_executor
    from ._executors import train_chunk as train_chunk
    from ._external import External as External
    from ._filled import verdict_from_csv as verdict_from_csv
    from ._info import ProblemInfo as ProblemInfo
    from ._lab import Lab as Lab
    from ._noise import row_stderr as row_stderr
    from ._plan import Plan as Plan
    from ._plan import plan as plan
    from ._record import Cost as Cost
    from ._record import Outcome as Outcome
    from ._record import Record as Record
    from ._results import Results as Results
    from ._row import Packed as Packed
    from ._store import Store as Store
    from ._store import StoreError as StoreError
    from ._study import Study as Study
    from ._verdict import Verdict as Verdict
    from .methods import Choice as Choice
    from .methods import Decision as Decision
    from .methods import Method as Method
    from .methods import make_method as make_method
    from .methods import method_names as method_names
    from .methods import register_method as register_method

_HOMES = {
    "Best": "_best",
    "Chunk": "_executors",
    "Executor": "_executors",
    "make_executor": "_executors",
    "train_chunk": "_executors",
    "External": "_external",
    "verdict_from_csv": "_filled",
    "ProblemInfo": "_info",
    "Lab": "_lab",
    "row_stderr": "_noise",
    "Plan": "_plan",
    "plan": "_plan",
    "Progress": "._progress",
    "Cost": "_record",
    "Outcome": "_record",
    "Record": "_record",
    "Results": "_results",
    "Packed": "_row",
    "Store": "_store",
    "StoreError": "_store",
    "Study": "_study",
    "Verdict": "_verdict",
    "Choice": "methods",
    "Decision": "methods",
    "Method": "methods",
    "make_method": "methods",
    "method_names": "methods",
    "register_method": "methods",
}


def __getattr__(name: str) -> Any:
    # On demand: whoever only reads results, such as a report, need not wait for torch.
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
