"""Measures how much a training step on one task lowers the losses of the other tasks."""

from .check import Check as Check
from .closure import ClosureError as ClosureError, LazyLosses as LazyLosses
from .estimators import (
    CenteredCosine as CenteredCosine,
    Cosine as Cosine,
    Estimator as Estimator,
    Gradient as Gradient,
    Lookahead as Lookahead,
    Observed as Observed,
    Quantity as Quantity,
    estimator_names as estimator_names,
    register_estimator as register_estimator,
)
from .meter import AffinityMeter as AffinityMeter
from .schedules import Auto as Auto, Every as Every, RoundRobin as RoundRobin, Schedule as Schedule
