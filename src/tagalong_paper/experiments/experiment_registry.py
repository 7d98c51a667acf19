"""The paper's experiments by name."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from tagalong.errors import InvalidInput

if TYPE_CHECKING:
    from ..experiment_report import Report
    from ..experiment_setup import ExperimentSetup


class Experiment(NamedTuple):
    """An experiment from the paper.

    Attributes:
        name: the command-line name of the experiment.
        summary: a one-line description.
        trains: whether the experiment trains networks or only uses published numbers.
    """

    name: str
    summary: str
    trains: bool = True


EXPERIMENTS = (
    Experiment("selection", "the printed groupings and the best ones for the same matrices", trains=False),
    Experiment("errata", "all disagreements with the printed numbers, with reasons", trains=False),
    Experiment("theory", "tests of Lemma 1 and Proposition 1", trains=False),
    Experiment("matrix", "heat maps of the published affinities and of ours, with natural groups"),
    Experiment("tune", "learning rate, batch size and GradNorm's α, on validation"),
    Experiment("main", "total error against cost for every method, per-task tables"),
    Experiment("capacity", "larger networks for all tasks against groups"),
    Experiment("no-early-stopping", "training augmentations without early stopping"),
    Experiment("partner", "the best, the chosen and the worst partner of each task"),
    Experiment("frequency", "how often affinities must be measured, and what that saves"),
    Experiment("validation", "affinity on train against validation loss"),
    Experiment("over-time", "affinities in the course of training"),
    Experiment("task-sets", "affinities of the same pair within other sets of tasks"),
    Experiment("hyperparameters", "do groups carry over to another batch size or learning rate?"),
)


def run_experiment(name: str, setup: ExperimentSetup | None = None, **options: Any) -> Report:
    """Runs an experiment.

    Args:
        name: the name of an experiment in `EXPERIMENTS`. For "selection", call `selections` instead.
        setup: the problem, the seeds and the output folder, or None for experiments that do not train networks.
        **options: the experiment's options.

    Example:
        >>> run_experiment("errata").claims[0].reproduced
        'no'
    """
    known = {experiment.name: experiment for experiment in EXPERIMENTS if experiment.name != "selection"}
    if name not in known:
        raise InvalidInput("name", f"must be one of {', '.join(map(repr, known))}", repr(name))
    module = _load_module(name)
    if hasattr(module, "METHODS"):
        check_methods(name, options.get("methods"))
    found: Report = module.run(setup, **options) if known[name].trains else module.run(**options)
    if setup is None or not found.has_printed_columns:
        return found
    return replace(found, notes=[*found.notes, *setup.printed_notes])


def check_methods(name: str, methods: Sequence[str] | None) -> None:
    """Raises an error if an experiment does not support a method, or if the list is empty.

    Args:
        name: the name of an experiment.
        methods: the method names, or None for the experiment's default.

    Example:
        >>> check_methods("capacity", ["mtl", "tag"])
        Traceback (most recent call last):
        tagalong.errors.InvalidInput: `methods` must be one or more of 'mtl', 'uw', 'gradnorm', found 'tag'
    """
    if methods is None:
        return
    known: Sequence[str] = _load_module(name).METHODS
    unknown = [method for method in methods if method not in known]
    if unknown or not methods:
        found = ", ".join(map(repr, unknown)) or "none"
        raise InvalidInput("methods", f"must be one or more of {', '.join(map(repr, known))}", found)


def _load_module(name: str) -> ModuleType:
    return importlib.import_module(f".{name.replace('-', '_')}", __package__)
