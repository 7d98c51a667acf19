"""How much does a step on one task lower another task's loss?"""

from ._check import Check as Check
from ._errors import ClosureError as ClosureError
from ._estimators import Cosine as Cosine
from ._estimators import Estimator as Estimator
from ._estimators import Gradient as Gradient
from ._estimators import Lookahead as Lookahead
from ._estimators import Observed as Observed
from ._estimators import Quantity as Quantity
from ._estimators import estimator_names as estimator_names
from ._estimators import find_estimator as find_estimator
from ._estimators import register_estimator as register_estimator
from ._meter import AffinityMeter as AffinityMeter
from ._schedules import About as About
from ._schedules import Auto as Auto
from ._schedules import Every as Every
from ._schedules import RoundRobin as RoundRobin
from ._schedules import Schedule as Schedule
from ._schedules import Window as Window
