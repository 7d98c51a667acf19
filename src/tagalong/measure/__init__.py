"""Measures how much a training step on one task lowers the losses of the other tasks."""

from .check import Check as Check
from .closure import ClosureError as ClosureError
from .closure import LazyLosses as LazyLosses
from .estimators import CenteredCosine as CenteredCosine
from .estimators import Cosine as Cosine
from .estimators import Estimator as Estimator
from .estimators import Gradient as Gradient
from .estimators import Lookahead as Lookahead
from .estimators import Observed as Observed
from .estimators import Quantity as Quantity
from .estimators import estimator_names as estimator_names
from .estimators import register_estimator as register_estimator
from .meter import AffinityMeter as AffinityMeter
from .schedules import Auto as Auto
from .schedules import Every as Every
from .schedules import RoundRobin as RoundRobin
from .schedules import Schedule as Schedule
