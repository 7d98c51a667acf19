"""`task-sets`: does the affinity between two tasks stay the same when the other tasks change?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput
from tagalong.learn import Batch, Problem, Reader, Rows, Split, StreamedRows, derive_seed, require_in_memory
from tagalong.report import affinity_heatmap

from ..affinities import measure_affinities, pool_seeds, with_short_names
from ..claims import claim_correlation, judge_lower, pearson, summarize
from ..experiment_report import Answer, Cell, Claim, Report, ReportTable, Value
from ..experiment_setup import SMALL_TASKS
from ..metrics import error_per_row, metric_digits, metric_label, network_results

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from ..experiment_setup import ExperimentSetup

TITLE = "Are affinities maintained in another set of tasks?"
FIRST_PAPER_SET = ("5_o_Clock_Shadow", "Black_Hair", "Blond_Hair", "Brown_Hair", "No_Beard")  # a1, a2, a3, a4, a7
SECOND_PAPER_SET = ("5_o_Clock_Shadow", "Goatee", "No_Beard", "Rosy_Cheeks", "Wearing_Hat")  # a1, a5, a7, a8, a9
RANDOM_SET_COUNTS = {"small": 3, "full": 12}
SET_SIZE = 5
MIN_TASKS = 4  # any two sets of three out of four tasks share a pair
MIN_CORRELATION = 0.7
DESTRUCTIVE, WEIGHT = "destructive", 20.0
Tasks = tuple[str, ...]


def run(setup: ExperimentSetup) -> Report:
    """Measures affinities in the paper's two sets, in random sets, and in one set with a destructive task."""
    names = candidate_tasks(setup)
    drawn = random_sets(names, RANDOM_SET_COUNTS[setup.size], setup.seeds[0])
    paper_sets: list[Tasks] = [tasks for tasks in (FIRST_PAPER_SET, SECOND_PAPER_SET) if set(tasks) <= set(names)]
    sets = list(dict.fromkeys([*paper_sets, *drawn]))
    harmful = with_destructive_task(setup.problem.only(sets[0]))
    by_seed = {tasks: _affinities(setup, setup.problem.only(tasks)) for tasks in sets}
    found = {tasks: pool_seeds(affinities) for tasks, affinities in by_seed.items()}
    harmed = {seed: affinity.only(sets[0]) for seed, affinity in _affinities(setup, harmful).items()}
    without_task, with_task = (_totals(setup, problem, sets[0]) for problem in (setup.problem.only(sets[0]), harmful))
    pairs = [(one, other) for one, other in combinations(sets, 2) if len(set(one) & set(other)) > 1]
    between_sets = _correlate_shared_pairs([(found[one], found[other]) for one, other in pairs])
    with_destructive = _correlate_shared_pairs([(found[sets[0]], pool_seeds(harmed))])
    correlations = [
        (
            _correlate_shared_pairs([(by_seed[one][seed], by_seed[other][seed]) for one, other in pairs])["raw"],
            _correlate_shared_pairs([(by_seed[sets[0]][seed], affinity)])["raw"],
        )
        for seed, affinity in harmed.items()
    ]
    return Report(
        "task-sets",
        TITLE,
        tables=[
            _correlation_table(between_sets, with_destructive, len(pairs)),
            _harm_table(setup, without_task, with_task),
            *_target_tables(setup, found, paper_sets),
        ],
        claims=[
            _claim_maintained(between_sets),
            claim_affinities_change(
                correlations, judge_lower(without_task, with_task, per_row=error_per_row(setup.chosen))
            ),
        ],
        figures=_figures(setup, {tasks: with_short_names(setup, found[tasks]) for tasks in paper_sets or sets[:2]}),
        notes=[
            *replace(setup, tasks=names).notes,
            f"{len(sets)} sets of {len(sets[0])} tasks, drawn from {len(names)}; the {DESTRUCTIVE} task, in the first "
            "set, has labels of other rows and a large weight",
        ],
    )


def candidate_tasks(setup: ExperimentSetup) -> Tasks:
    """Returns the tasks to draw sets from: the user's choice, or by default all tasks, even at small size.

    Raises:
        ValueError: If there are too few tasks to ensure that any two sets share a pair.
    """
    # The default tasks at small size are too few for the paper's sets.
    names = setup.problem.names if setup.tasks is None or setup.tasks is SMALL_TASKS else setup.chosen.names
    if len(names) < MIN_TASKS:
        raise InvalidInput(
            "tasks",
            f"must name at least {MIN_TASKS} tasks for task-sets (so that any two sets share a pair)",
            f"{len(names)}: {', '.join(names)}",
            "name more tasks, or omit `tasks` to use all of them",
        )
    return tuple(names)


def random_sets(names: Tasks, count: int, seed: int) -> list[Tasks]:
    """Draws random sets of up to five tasks, each in the problem's order."""
    random = np.random.default_rng([seed, len(names)])
    size = min(SET_SIZE, len(names) - 1)
    drawn = [set(random.choice(len(names), size, replace=False).tolist()) for _ in range(count)]
    return [tuple(name for place, name in enumerate(names) if place in chosen) for chosen in drawn]


def _affinities(setup: ExperimentSetup, problem: Problem) -> dict[int, Affinity]:
    with setup.open_backend(problem) as backend:
        return measure_affinities(backend, setup.seeds, every=1 if setup.is_small else 10)


def _totals(setup: ExperimentSetup, problem: Problem, tasks: Tasks) -> list[float]:
    """Returns the total over these tasks for each seed, from one network for all of the problem's tasks."""
    with setup.open_backend(problem) as backend:
        found = network_results(backend, problem.names, setup.seeds)
    return [sum(results) for results in zip(*(found[task] for task in tasks), strict=True)]


def _correlate_shared_pairs(pairs: list[tuple[Affinity, Affinity]]) -> dict[str, float]:
    """Correlates the affinities of the task pairs that two sets share, both raw and centered per target."""
    raw: list[tuple[float, float]] = []
    centered: list[tuple[float, float]] = []
    for one, other in pairs:
        tasks = [task for task in one.tasks if task in other.tasks]
        first, second = one.only(tasks).mean, other.only(tasks).mean
        off = ~np.eye(len(tasks), dtype=bool)
        raw += zip(first[off].tolist(), second[off].tolist(), strict=True)
        if len(tasks) > 2:
            one_centered, other_centered = (
                np.where(off, m, np.nan) - np.nanmean(np.where(off, m, np.nan), axis=0) for m in (first, second)
            )
            centered += zip(one_centered[off].tolist(), other_centered[off].tolist(), strict=True)
    return {
        "raw": pearson(*np.array(raw).T) if raw else float("nan"),
        "centered": pearson(*np.array(centered).T) if centered else float("nan"),
        "values": float(len(raw)),
    }


def with_destructive_task(problem: Problem) -> Problem:
    """Returns the problem with an additional, heavily weighted task: the first task's labels, shuffled across rows.

    Only the label frequencies of this task can be learned, and its gradients dominate all others.
    """
    task = replace(problem.tasks[0], name=DESTRUCTIVE, weight=WEIGHT)
    train, val, test = (_add_shuffled_labels(part, rows, problem.names[0]) for part, rows in problem.splits.items())
    return replace(problem, tasks=(*problem.tasks, task), train=train, val=val, test=test)


def _add_shuffled_labels(part: str, rows: Rows, task: str) -> Rows:
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(derive_seed(0, "destructive", part)))
    if isinstance(rows, StreamedRows):
        return replace(rows, reader=ShuffledLabelReader(rows.reader, task, order), tasks=(*rows.tasks, DESTRUCTIVE))
    split: Split = require_in_memory(rows, "a destructive task")
    labels = split.targets[task][order.to(split.inputs.device)]
    return replace(split, targets={**split.targets, DESTRUCTIVE: labels})


@dataclass(frozen=True, eq=False)
class ShuffledLabelReader:
    """Reads rows with an additional label, which is a task's label from another row.

    Attributes:
        reader: the reader for the original rows.
        task: the task that provides the labels.
        order: for each row, the index of the row that provides its label.
    """

    reader: Reader
    task: str
    order: Tensor

    @property
    def tasks(self) -> tuple[str, ...]:
        """The reader's tasks and the destructive task."""
        return (*self.reader.tasks, DESTRUCTIVE)

    def __len__(self) -> int:
        return len(self.reader)

    def read(self, row: int, tasks: Sequence[str], draw: int | None) -> Batch:
        """Reads one row with its additional label. Both rows are read with the same `draw`."""
        inputs, targets = self.reader.read(row, [task for task in tasks if task != DESTRUCTIVE], draw)
        if DESTRUCTIVE in tasks:
            targets[DESTRUCTIVE] = self.reader.read(int(self.order[row]), [self.task], draw)[1][self.task]
        return inputs, targets

    def contents(self) -> Iterator[bytes]:
        """Yields the reader's contents and the label order."""
        yield from self.reader.contents()
        yield f"{DESTRUCTIVE} {self.task} {self.order.tolist()}".encode()


def _correlation_table(between_sets: dict[str, float], with_destructive: dict[str, float], pairs: int) -> ReportTable:
    rows: list[list[Cell]] = [
        [name, number, int(found["values"]), Value(found["raw"], digits=3), Value(found["centered"], digits=3)]
        for name, number, found in (
            ("other company", pairs, between_sets),
            (f"the first set and a {DESTRUCTIVE} task", 1, with_destructive),
        )
    ]
    columns = ("compared", "pairs of sets", "affinities", "Pearson", "less the mean onto each target")
    return ReportTable("The same pairs of tasks in two sets", columns, rows)


def _harm_table(setup: ExperimentSetup, without_task: list[float], with_task: list[float]) -> ReportTable:
    digits = metric_digits(setup.chosen)
    increase = [
        100 * (after - before) / before if before else float("nan")
        for before, after in zip(without_task, with_task, strict=True)
    ]
    row: list[Cell] = [summarize(without_task, digits=digits), summarize(with_task, digits=digits), summarize(increase)]
    title = f"Does the {DESTRUCTIVE} task harm the first set? Its total {metric_label(setup.chosen)}"
    return ReportTable(title, ("without it", "with it", "more, %"), [row])


def _target_tables(
    setup: ExperimentSetup, affinities: dict[Tasks, Affinity], paper_sets: list[Tasks]
) -> list[ReportTable]:
    """Returns tables of the affinities for the targets a1 and a7 in the paper's two sets."""
    tables = []
    for target in ("5_o_Clock_Shadow", "No_Beard"):
        rows: list[list[Cell]] = []
        for tasks in paper_sets:
            affinity = affinities[tasks]
            onto = affinity.mean[:, affinity.tasks.index(target)]
            shown = [
                f"{setup.short_name(task)} {1000 * found:.2f}"
                for task, found in zip(tasks, onto, strict=True)
                if task != target
            ]
            rows.append([" ".join(map(setup.short_name, tasks)), "  ".join(shown)])
        if rows:
            title = f"Affinity × 1000 onto {setup.short_name(target)}"
            tables.append(
                ReportTable(title, ("trained with", "affinities"), rows, "the paper prints this as a picture")
            )
    return tables


def _claim_maintained(between_sets: dict[str, float]) -> Claim:
    text = "the affinity between two tasks is largely maintained in another set"
    return claim_correlation(
        text,
        between_sets["raw"],
        yes_threshold=MIN_CORRELATION,
        details=f" over {between_sets['values']:.0f} affinities",
    )


def claim_affinities_change(correlations: Sequence[tuple[float, float]], is_harmful: Answer) -> Claim:
    """Judges whether a destructive task changes affinities more than other sets of tasks do.

    Args:
        correlations: two correlations per seed. The first is between sets without the destructive task, and the second
            is between the same set with and without that task.
        is_harmful: whether the destructive task clearly increases the total of the other tasks. If the answer is
            "no", the claim cannot be tested.
    """
    text = "a task that harms the network changes affinities between the others"
    between_sets, with_destructive = zip(*correlations, strict=True)
    because = (
        f"with single seeds, Pearson is {np.mean(with_destructive):.2f} with it, {np.mean(between_sets):.2f} between "
        f"sets without it; does it harm? {is_harmful}"
    )
    answer = judge_lower(with_destructive, between_sets)
    if answer == "not tested" or is_harmful == "no":
        return Claim(text, "not tested", because)
    return Claim(text, answer if is_harmful == "yes" else "within noise", because)


def _figures(setup: ExperimentSetup, affinities: Mapping[Tasks, Affinity]) -> dict[str, Figure]:
    """Draws a heat map for each set, all with the same color scale."""
    return {
        f"task-sets-{place + 1}": affinity_heatmap(
            affinity,
            center="target",
            compare_with=other,
            title=f"Trained with {', '.join(map(setup.short_name, tasks))}",
        )
        for place, ((tasks, affinity), other) in enumerate(
            zip(affinities.items(), reversed([*affinities.values()]), strict=True)
        )
    }
