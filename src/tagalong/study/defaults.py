"""The methods that a study compares unless others are named."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tagalong.learn import Problem, TabM

from .methods import make_method

DEFAULT_BUDGETS = (2, 3, 4)  # as in the paper
MAX_LARGER = 10  # the largest multiple of the parameters that is compared by default


@dataclass(frozen=True)
class DefaultMethods:
    """The methods that a study compares by default.

    Attributes:
        names: the names of the methods.
        left_out: why other methods cannot be used for this problem, by name.
    """

    names: tuple[str, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def notes(self) -> list[str]:
        """A sentence for each reason why methods are left out."""
        names: dict[str, list[str]] = {}
        for name, why in self.left_out.items():
            names.setdefault(why, []).append(name)
        return [f"Left out: {', '.join(some)} ({why})." for why, some in names.items()]


def default_methods(
    problem: Problem, budgets: Sequence[int] | None = None, with_options: Collection[str] = ()
) -> DefaultMethods:
    """Returns the methods that a study compares by default.

    A grouping is worth its effort only if it beats simpler uses of the same networks. The default methods are therefore
    one plain network (`mtl`), one larger network for each budget up to 10 (`mtl-big2`, …), copies of the plain network
    (`ensemble` and `best-of`), one network per task (`stl`), groups (`tag` and `auto`), for tables `boosting` and
    `ridge`, and what learning nothing gives (`constant`). On top of a TabM network, copies and groups bring little,
    and are trained only if there are options for them, e.g. an effort; `blend` averages the network with `boosting`
    and `ridge` instead. Methods that do not support the problem are left out.

    Args:
        problem: the problem of the study.
        budgets: the limits on the number of networks. Defaults to those of `Study.run`.
        with_options: the methods for which the study has options.

    Example:
        >>> import numpy as np
        >>> from tagalong.learn import Task
        >>> X, Y = np.random.default_rng(0).normal(size=(2, 100, 2))
        >>> problem = Problem.from_arrays(X, Y, [Task(name, kind="regression") for name in ("age", "height")])
        >>> [name for name in default_methods(problem, budgets=[2, 3]).names if name not in ("boosting", "ridge")]
        ['mtl', 'mtl-big2', 'mtl-big3', 'ensemble', 'best-of', 'stl', 'tag', 'auto', 'constant']
    """
    tasks = problem.names
    given = default_budgets(len(tasks)) if budgets is None else budgets
    larger = [f"mtl-big{budget}" for budget in sorted(set(given)) if 1 < budget <= MAX_LARGER]
    names = ["mtl", *larger, "ensemble", "best-of", "stl", "tag", "auto", "boosting", "ridge", "constant"]
    left_out = {}
    if isinstance(problem.encoder, TabM):
        unasked = [name for name in names[1:-3] if name not in with_options]
        left_out = dict.fromkeys(unasked, "brings little on top of TabM, and takes long")
        names = ["mtl", "blend", *(name for name in names[1:] if name not in unasked)]
    left_out |= {name: why for name in names if (why := _why_not(name, problem, given))}
    return DefaultMethods(tuple(name for name in names if name not in left_out), left_out)


def default_budgets(n_tasks: int) -> list[int]:
    """Returns the paper's budgets, up to the number of tasks."""
    return [budget for budget in DEFAULT_BUDGETS if budget <= n_tasks] or [1]


def _why_not(name: str, problem: Problem, budgets: Sequence[int]) -> str:
    """Returns why a method with its default options cannot be used for a problem, or an empty string if it can."""
    method, tasks = make_method(name), problem.names
    if problems := method.problems(tasks, problem):
        first = problems[0]  # its subject is the name of the method
        return first.expected + (f", found {first.found}" if first.found else "")
    if method.budgeted and not method.averages and not any(budget <= len(tasks) for budget in budgets):
        return f"uses at most {len(tasks)} networks, one per task"
    return ""
