"""The paper's experiments by name."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ..bench import Bench
    from ..report import Report


class Experiment(NamedTuple):
    """An experiment of the paper.

    Attributes:
        name: what users type.
        summary: what it shows, in a line.
        trains: whether networks are trained; else it only computes from published numbers.
    """

    name: str
    summary: str
    trains: bool = True


EXPERIMENTS = (
    Experiment("selection", "the printed groupings and the best ones for the same matrices", trains=False),
    Experiment("errata", "every disagreement with the printed numbers, and why", trains=False),
    Experiment("theory", "Lemma 1 and Proposition 1 put to the test", trains=False),
    Experiment("matrix", "heat maps of the published affinities and of ours, natural groups named"),
    Experiment("tune", "learning rate, batch size and GradNorm's α, on validation"),
    Experiment("main", "total error against cost for every method, per-task tables"),
    Experiment("capacity", "larger networks for all tasks against groups"),
    Experiment("no-early-stopping", "training augmentations when every epoch is trained"),
    Experiment("partner", "the best, the chosen and the worst partner of each task"),
    Experiment("frequency", "how often affinities must be measured, and what that saves"),
    Experiment("validation", "affinity on train against validation loss"),
    Experiment("over-time", "affinities while the network learns"),
    Experiment("task-sets", "affinities of the same pair in other company"),
    Experiment("hyperparameters", "do groups carry over to another batch size or learning rate?"),
)


def run_experiment(name: str, bench: Bench | None = None, **options: Any) -> Report:
    """Runs an experiment.

    Args:
        name: of `EXPERIMENTS`, but `selection`, which has a door of its own.
        bench: where it runs; None for those that only compute.
        **options: of the experiment.

    Example:
        >>> run_experiment("errata").claims[0].appeared
        'no'
    """
    known = {experiment.name: experiment for experiment in EXPERIMENTS if experiment.name != "selection"}
    if name not in known:
        raise ValueError(f"`name` must be one of {', '.join(map(repr, known))}, found {name!r}")
    module = _module(name)
    if hasattr(module, "METHODS"):
        check_methods(name, options.get("methods"))
    found: Report = module.run(bench, **options) if known[name].trains else module.run(**options)
    if bench is None or not found.holds_printed:
        return found
    return replace(found, notes=[*found.notes, *bench.about_printed])


def check_methods(name: str, methods: Sequence[str] | None) -> None:
    """Refuses methods that an experiment does not know, and none at all; nothing is loaded or trained for that.

    Args:
        name: of an experiment.
        methods: what is asked for; None: the usual ones.

    Example:
        >>> check_methods("capacity", ["mtl", "tag"])
        Traceback (most recent call last):
        ValueError: `methods` must be of 'mtl', 'uw', 'gradnorm', found 'tag'
    """
    if methods is None:
        return
    known: Sequence[str] = _module(name).METHODS
    unknown = [method for method in methods if method not in known]
    if unknown or not methods:
        found = ", ".join(map(repr, unknown)) or "none"
        raise ValueError(f"`methods` must be of {', '.join(map(repr, known))}, found {found}")


def _module(name: str) -> ModuleType:
    return importlib.import_module(f".{name.replace('-', '_')}", __package__)
