"""Methods that fit an estimator for each task of a table: gradient boosting, and ridge or logistic regression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tagalong.errors import InvalidInput
from tagalong.group import Group
from tagalong.learn import Problem, why_not_fitted

from .method import Choice, Decision
from .mtl_stl import Mtl

if TYPE_CHECKING:
    from ..runner import Runner

LIBRARIES = ("scikit-learn", "xgboost", "lightgbm", "catboost", "xgboost-vector")


class Ridge(Mtl):
    """Fits ridge regression, or logistic regression for classes, for each task. The model of all tasks counts as one.

    The result does not depend on the seed.
    """

    name = network = "ridge"
    order = 10

    def problems(self, tasks: Sequence[str], problem: Problem | None = None) -> list[InvalidInput]:
        method = f"`methods`: {self.name!r}"
        if problem is None:
            return [InvalidInput(method, "requires the data, so it cannot be used for networks trained elsewhere")]
        reason = why_not_fitted(problem.tasks, problem.splits.values())
        if reason is None:
            problem.with_network(self.network)  # which raises an error if its library is missing
        return [InvalidInput(method, "requires a table in memory, with usual tasks", reason)] if reason else []

    def decide(self, runner: Runner, budgets: Sequence[int], seeds: Sequence[int]) -> Decision:
        return Decision.pooled({None: Choice((Group(runner.tasks, runner.tasks, network=self.network),))}, seeds)


class Boosting(Ridge):
    """Trains gradient-boosted trees for each task. The model of all tasks counts as one.

    Args:
        library: "scikit-learn", or, if it is installed, "xgboost", "lightgbm" or "catboost". "xgboost-vector" is one
            XGBoost model for all tasks, whose leaves hold a value for each of them.
    """

    name = "boosting"

    def __init__(self, library: str = "scikit-learn") -> None:
        if library not in LIBRARIES:
            expected = f"must be one of {', '.join(map(repr, LIBRARIES))}"
            raise InvalidInput("`options`: `library` of 'boosting'", expected, repr(library))
        self.network = "boosting" if library == "scikit-learn" else library
