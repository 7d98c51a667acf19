"""The paper's experiments by name. Each module that trains networks has a function `run` that returns a `Report`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from tagalong.errors import InvalidInput

from ..printed import read_json
from ..report import Report

if TYPE_CHECKING:
    from ..experiment_setup import ExperimentSetup


class Experiment(NamedTuple):
    """An experiment from the paper.

    Attributes:
        name: the command-line name of the experiment.
        summary: a one-line description.
        trains: whether the experiment trains networks or only uses published numbers.
        methods: the values of the option `methods`, for experiments that have it.
    """

    name: str
    summary: str
    trains: bool = True
    methods: Sequence[str] = ()


EXPERIMENTS = (
    Experiment("selection", "the printed groupings and the best ones for the same matrices", trains=False),
    Experiment("errata", "all disagreements with the printed numbers, with reasons", trains=False),
    Experiment("theory", "tests of Lemma 1 and Proposition 1", trains=False),
    Experiment("matrix", "heat maps of the published affinities and of ours, with natural groups"),
    Experiment("tune", "learning rate, batch size and GradNorm's α, on validation"),
    Experiment("main", "total error against cost for every method, per-task tables"),
    Experiment("capacity", "larger networks for all tasks against groups", methods=("mtl", "uw", "gradnorm")),
    Experiment(
        "no-early-stopping",
        "training augmentations without early stopping",
        methods=("mtl", "uw", "gradnorm", "pcgrad", "pcgrad-uw"),
    ),
    Experiment("partner", "the best, the chosen and the worst partner of each task"),
    Experiment("frequency", "how often affinities must be measured, and what that saves"),
    Experiment("validation", "affinity on train against validation loss"),
    Experiment("over-time", "affinities in the course of training"),
    Experiment("task-sets", "affinities of the same pair within other sets of tasks"),
    Experiment("hyperparameters", "do groups carry over to another batch size or learning rate?"),
)


PRINTED_NOTE = 'columns headed "printed" hold the paper\'s numbers, at full size and on its own data'
STORED = ("errata", "theory")  # with the printed numbers, since nothing is computed


def find_experiment(name: str, methods: Sequence[str] | None = None, as_published: bool = False) -> Experiment:
    """Returns an experiment after checking its options.

    Example:
        >>> find_experiment("capacity", methods=["mtl", "tag"])
        Traceback (most recent call last):
        tagalong.errors.InvalidInput: `methods` must be one or more of 'mtl', 'uw', 'gradnorm', found 'tag'
    """
    by_name = {experiment.name: experiment for experiment in EXPERIMENTS}
    if name not in by_name:
        raise InvalidInput("the experiment", f"must be one of {', '.join(by_name)}", repr(name))
    allowed = by_name[name].methods
    if methods is not None and not (methods and set(methods) <= set(allowed)):
        unknown = [repr(method) for method in methods if method not in allowed]
        expected = f"must be one or more of {', '.join(map(repr, allowed))}" if allowed else f"is no option of {name}"
        raise InvalidInput("methods", expected, ", ".join(unknown) or "none")
    if as_published and name != "main":
        raise InvalidInput("as_published", f"is no option of {name}")
    return by_name[name]


def run_experiment(name: str, setup: ExperimentSetup | None = None, **options: Any) -> Report:
    """Runs an experiment.

    Args:
        name: the name of an experiment in `EXPERIMENTS`.
        setup: the problem, the seeds and the output folder, or None for experiments that do not train networks, whose
            results are stored with the printed numbers.
        **options: the experiment's options.

    Example:
        >>> run_experiment("errata").claims[0].reproduced
        'no'
    """
    find_experiment(name, **options)
    if name in STORED:
        return Report.from_document(read_json(name))
    module = import_module(f".{name.replace('-', '_')}", __name__)
    report: Report = module.run() if setup is None else module.run(setup, **options)
    if setup is not None and any(column.startswith("printed") for table in report.tables for column in table.columns):
        report = replace(report, notes=[*report.notes, PRINTED_NOTE])
    return report
