"""The evidence of a verdict: the skill of every way of using models, on every row, from records and a runner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tagalong.learn import FITTED, constant_losses, has_constant, row_skills, skill_constants, skill_units, task_skills

from .noise import seed_stderr
from .records import TOGETHER, Label, Record, SkillScale, by_label
from .rule import Evidence, Rows, Way
from .summary import mean, mean_cost, relative_cost
from .verdict import ServingCost

if TYPE_CHECKING:
    from tagalong.score import Score

    from .runner import Runner

Losses = Mapping[str, NDArray[Any]]
CrossFitted = Mapping[tuple[str, int | None, int], Losses]
PARTS = ("val", "test")
LAST_EPOCHS = 3
PICKING = ("hoa", "optimal", "chosen")  # methods that pick networks by validation losses which also judge them
HEAVY_SHARE, HEAVY_ROWS = 0.3, 0.01  # of a constant's loss, that this share of the rows makes up


def gather_evidence(
    runner: Runner | None, records: Sequence[Record], reference: Label, cross_fitted: CrossFitted | None = None
) -> Evidence:
    """Collects the evidence in some records of one split.

    Args:
        runner: the runner, which knows the losses of each row and the cost of an answer, or None if only the mean
            losses in the records are known. These say nothing about the noise of rows.
        records: the records of all methods.
        reference: the label of the way that everything is compared with.
        cross_fitted: by method, budget and seed, each task's losses on the validation rows, from models that these rows
            did not pick. For all others, these are the losses of the very models.
    """
    usable, lost = _usable(records, reference)
    known = {part: _losses(runner, usable, part) for part in PARTS}
    for place, record in enumerate(usable):
        picked = (cross_fitted or {}).get((record.method, record.budget, record.seed))
        if picked is not None:
            known["val"][place] = picked

    # What each row's loss is compared with: a constant, or the reference where there is none.
    has_labels = runner is not None and len(runner.problem.val) > 0
    constants: dict[str, dict[str, NDArray[np.float64]]] = {part: {} for part in PARTS}
    units: dict[str, float] = {}
    if runner is not None:
        constants, units = constants_and_units(runner)
    heavy_tails = tuple(task for task in units if _has_heavy_tails(constants["test"][task]))
    relative = tuple(task for task in records[0].test if task not in units)
    for part in PARTS:
        compared = [rows for record, rows in zip(usable, known[part], strict=True) if record.label == reference]
        for task in relative:
            constants[part][task] = np.mean([rows[task] for rows in compared], axis=0, dtype=np.float64)
            units[task] = abs(task_means(constants[part])[task]) or 1.0
    skills = {part: [row_skills(rows, constants[part], units) for rows in some] for part, some in known.items()}
    if runner is not None:
        flattery = _stopping_flattery(runner, usable)
        for record, rows in zip(usable, skills["val"], strict=True):
            for task in rows:
                added = [flattery.get((group.network, task), 0.0) for group in record.groups if task in group.serves]
                rows[task] -= mean(added) / units[task]

    weights = {task: 1.0 for task in units if task not in relative} or dict.fromkeys(units, 1.0)
    scale = SkillScale({part: task_means(constants[part]) for part in PARTS}, units, weights, relative)
    evidence = Evidence(tuple(_make_ways(usable, skills, runner)), reference, scale, lost=tuple(lost))
    if runner is None or not has_labels:
        return evidence
    return replace(
        evidence,
        scale=replace(scale, weights={task: runner.problem.task(task).weight for task in weights}),
        labels={task: label_counts(runner, task) for task in weights},
        clusters={part: _clusters(runner, part) for part in PARTS},
        late=_late_networks(runner, usable),
        heavy_tails=heavy_tails,
    )


def join_folds(folds: Sequence[Evidence]) -> Evidence:
    """Returns the evidence of all folds together, in which each way has the rows of all folds, one after the other."""
    first, *others = folds
    if not others:
        return first
    clusters: dict[str, NDArray[Any] | None] = {}
    for part in PARTS:
        # Clusters never are in two folds, but folds may number them alike.
        named = []
        for number, fold in enumerate(folds):
            own = fold.clusters.get(part)
            if own is not None:
                named.append(np.stack([np.full(len(own), number), own], 1))
        clusters[part] = np.unique(np.concatenate(named), axis=0, return_inverse=True)[1] if named else None
    ways = []
    for way in first.ways:
        same = [found for fold in folds if (found := fold.way(way.label)) is not None]
        if len(same) == len(folds):
            ways.append(_join_ways(same))
    scale = replace(first.scale, folds=tuple(fold.scale for fold in folds))
    counts = {task: [fold.labels[task] for fold in folds] for task in first.labels}
    return replace(
        first,
        ways=tuple(ways),
        scale=scale,
        labels={task: (sum(n for n, _ in some), sum(n for _, n in some)) for task, some in counts.items()},
        clusters=clusters,
        folds=tuple(folds),
        late=(sum(fold.late[0] for fold in folds), sum(fold.late[1] for fold in folds)),
        lost=tuple(dict.fromkeys(label for fold in folds for label in fold.lost)),
    )


def _join_ways(folds: Sequence[Way]) -> Way:
    """Joins the rows of a way in all folds. You get the networks of the first fold; costs are means over folds."""

    def join(parts: Sequence[Rows]) -> Rows:
        return {task: np.concatenate([rows[task] for rows in parts]) for task in parts[0]}

    by_seed = zip(*(way.errors for way in folds), strict=True)
    costs = [way.cost for way in folds]
    return replace(
        folds[0],
        val=tuple(join(parts) for parts in zip(*(way.val for way in folds), strict=True)),
        test=tuple(join(parts) for parts in zip(*(way.test for way in folds), strict=True)),
        errors=tuple({task: mean([own[task] for own in errors]) for task in errors[0]} for errors in by_seed),
        cost=ServingCost(
            mean([cost.operations for cost in costs]),
            mean([cost.parameters for cost in costs]),
            mean([cost.training for cost in costs]),
        ),
        deciding=sum(way.deciding for way in folds),
    )


def task_means(losses: Losses) -> dict[str, float]:
    """Returns the mean loss of each task over the rows with a label."""
    return task_skills({task: np.asarray(rows, dtype=np.float64) for task, rows in losses.items()})


def _usable(records: Sequence[Record], reference: Label) -> tuple[list[Record], list[Label]]:
    """Returns the records of ways that have networks for all seeds, and the ways in which a network diverged."""
    by_way = by_label(records)
    seeds = {record.seed for record in by_way[reference]}
    lost = [label for label, same in by_way.items() if any(record.diverged for record in same)]
    usable = []
    for label, same in by_way.items():
        is_complete = seeds <= {record.seed for record in same} and all(record.groups for record in same)
        if label not in lost and is_complete:
            usable += sorted(same, key=lambda record: record.seed)
    return usable, lost


def _losses(runner: Runner | None, records: Sequence[Record], part: str) -> list[Losses]:
    """Returns the losses of each task on every row or, unless they are known for all records, the mean losses."""
    rows = [] if runner is None else [runner.row_losses(record, part) for record in records]
    known: list[Losses] = [losses for losses in rows if losses]
    if len(known) == len(records):
        return known
    scores: list[Mapping[str, Score]] = [getattr(record, part) for record in records]
    return [{task: np.array([score.loss]) for task, score in by_task.items()} for by_task in scores]


def constants_and_units(runner: Runner) -> tuple[dict[str, dict[str, NDArray[np.float64]]], dict[str, float]]:
    """Returns the losses of the constants on every row of "val" and "test", and the unit of each task's skill.

    Constants are best for the training labels. If there are none, as with networks that are trained elsewhere, they are
    best for the validation labels, and the unit is their loss on the known rows. If there are no labels at all, their
    mean loss may be given (see `Task.constant_loss`).
    """
    problem = runner.problem
    if not len(problem.val):
        means = {task.name: task.constant_loss for task in problem.tasks if task.constant_loss is not None}
        return {part: {task: np.array([mean]) for task, mean in means.items()} for part in PARTS}, means
    if runner.trains:
        outputs = skill_constants(problem)
        return {part: constant_losses(problem, part, outputs) for part in PARTS}, skill_units(problem, outputs)
    tasks = tuple(task for task in problem.tasks if has_constant(problem, task))
    if not tasks:
        return {part: {} for part in PARTS}, {}
    known = replace(problem, tasks=tasks, train=problem.val)
    outputs = skill_constants(known)
    losses = {part: constant_losses(known, part, outputs) for part in PARTS}
    units = task_means({task: np.concatenate([losses[part][task] for part in PARTS]) for task in losses["val"]})
    return losses, {task: unit for task, unit in units.items() if unit > 0}


def label_counts(runner: Runner, task: str) -> tuple[int, int]:
    """Returns how many validation rows have a label, and how many of these are not of the largest class."""
    labels = runner.targets("val")[task]
    present = labels.reshape(len(labels), -1).isfinite().any(1)
    labelled = int(present.sum())
    if runner.problem.task(task).kind == "regression" or labels.dim() > 1 or not labelled:
        return labelled, labelled
    return labelled, labelled - int(labels[present].unique(return_counts=True)[1].max())


def _clusters(runner: Runner, part: str) -> NDArray[Any] | None:
    groups = runner.problem.splits[part].groups
    return None if groups is None else groups.numpy()


def _has_heavy_tails(losses: NDArray[np.float64]) -> bool:
    """Whether a few rows make up much of a constant's loss."""
    labelled = np.sort(losses[np.isfinite(losses)])
    few = int(HEAVY_ROWS * len(labelled))
    return bool(few and labelled[-few:].sum() > HEAVY_SHARE * labelled.sum())


def _make_ways(
    records: Sequence[Record], skills: Mapping[str, Sequence[Mapping[str, NDArray[np.float64]]]], runner: Runner | None
) -> list[Way]:
    unit = mean_cost([record.training for record in records if record.label == TOGETHER])
    places: dict[Label, list[int]] = {}
    for place, record in enumerate(records):
        places.setdefault(record.label, []).append(place)
    ways = []
    for label, own in places.items():
        same = [records[place] for place in own]
        cost = ServingCost(
            _operations(runner, same[0]),
            mean([record.parameters for record in same]),
            relative_cost(mean_cost([record.training for record in same]), unit) or 0.0,
        )
        luck = _luck_of_picking(label, [skills["val"][place] for place in own])
        val = [{task: rows - luck[task] for task, rows in skills["val"][place].items()} for place in own]
        way = Way(
            label,
            tuple(record.seed for record in same),
            max(len(record.groups) for record in same),
            tuple(record.groups for record in same),
            tuple(val),
            tuple(skills["test"][place] for place in own),
            tuple({task: score.error for task, score in record.test.items()} for record in same),
            cost,
            relative_cost(mean_cost([record.deciding for record in same]), unit) or 0.0,
            all(record.honest for record in same),
            any(group.network not in FITTED for record in same for group in record.groups),
        )
        ways.append(way)
    return ways


def _operations(runner: Runner | None, record: Record) -> float:
    """Returns the operations per row, or the number of networks if their sizes are unknown."""
    known = None if runner is None else runner.operations(record)
    return float(sum(group.size for group in record.groups)) if known is None else known


def _luck_of_picking(label: Label, skills: Sequence[Mapping[str, NDArray[np.float64]]]) -> dict[str, float]:
    """Returns how much of each task's skill on validation rows may be due to the luck of the networks that were picked.

    `hoa` and `optimal` train more networks than they use, and pick those with the best validation losses, some of which
    are low by chance. The best of two to five equally good networks is expected to be 0.6 to 1.2 standard errors better
    than the average, so one standard error over seeds is taken off, as in the one-standard-error rule (Breiman et al.,
    Classification and Regression Trees, 1984). With a single seed, the luck is unknown and taken as zero.
    """
    if label[0] not in PICKING or len(skills) < 2:
        return dict.fromkeys(skills[0], 0.0)
    by_seed = [task_means(rows) for rows in skills]
    return {task: seed_stderr([means[task] for means in by_seed]) for task in skills[0]}


def _stopping_flattery(runner: Runner, records: Sequence[Record]) -> dict[tuple[str | None, str], float]:
    """Returns how much too low validation losses are since these rows chose the epoch, by kind of network and task.

    The estimates of single networks are noisy, so those of all networks of a kind are averaged. This changes nothing
    between networks of one kind, but without it, they would be preferred to those that choose no epoch, such as ridge.
    """
    estimates: dict[tuple[str | None, str], list[float]] = {}
    for result in runner.store.results({key for record in records for key in record.networks}).values():
        for task, flattery in result.flattery.items():
            estimates.setdefault((result.job.network, task), []).append(flattery)
    return {kind: mean(known) for kind, known in estimates.items()}


def _late_networks(runner: Runner, records: Sequence[Record]) -> tuple[int, int]:
    """Returns how many networks were best in one of their last epochs, and of how many the best epoch is known."""
    recipe = runner.problem.recipe
    if not runner.trains or recipe.keep == "last":
        return 0, 0
    results = runner.store.results({key for record in records for key in record.networks})
    trained = [result for result in results.values() if result.job.network not in FITTED]
    return sum(result.best_epoch >= max(0, recipe.epochs - LAST_EPOCHS) for result in trained), len(trained)
