"""`task-sets`: does the affinity between two tasks stay the same when the other tasks change?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput
from tagalong.learn import Batch, Problem, Reader, Rows, StreamedRows, derive_seed, require_in_memory
from tagalong.report import affinity_heatmap

from ..experiment_setup import SMALL_TASKS, Array, ExperimentSetup, network_results, off_diagonal, pool_seeds
from ..report import Answer, Cell, Claim, Report, ReportTable, Value, claim_correlation, judge_lower, pearson, summarize

TITLE = "Are affinities maintained in another set of tasks?"
PAPER_SETS = (
    ("5_o_Clock_Shadow", "Black_Hair", "Blond_Hair", "Brown_Hair", "No_Beard"),  # a1, a2, a3, a4, a7
    ("5_o_Clock_Shadow", "Goatee", "No_Beard", "Rosy_Cheeks", "Wearing_Hat"),  # a1, a5, a7, a8, a9
)
SHOWN_TARGETS = ("a1", "a7")
RANDOM_SET_COUNTS = {"small": 3, "full": 12}
SET_SIZE = 5
MIN_TASKS = 4  # any two sets of three out of four tasks share a pair
DESTRUCTIVE, WEIGHT = "destructive", 20.0
CORRELATION_COLUMNS = ("compared", "pairs of sets", "affinities", "Pearson", "less the mean onto each target")
Tasks = tuple[str, ...]


def run(setup: ExperimentSetup) -> Report:
    """Measures affinities in the paper's two sets, in random sets, and in one set with a destructive task."""
    names = candidate_tasks(setup)
    paper_sets = [tasks for tasks in PAPER_SETS if set(tasks) <= set(names)]
    drawn = random_sets(names, RANDOM_SET_COUNTS[setup.size], setup.seeds[0])
    sets = list(dict.fromkeys([*paper_sets, *drawn]))
    measured = {}  # by set of tasks and seed
    for tasks in sets:
        with setup.open_runner(setup.problem.only(tasks)) as runner:
            measured[tasks] = setup.measure(runner)
    first, totals = sets[0], []
    harmful = with_destructive_task(setup.problem.only(first))
    for problem in (setup.problem.only(first), harmful):
        with setup.open_runner(problem) as runner:
            harmed = {seed: affinity.only(first) for seed, affinity in setup.measure(runner).items()}
            results = network_results(runner, problem.names, setup.seeds)
            totals.append(np.sum([results[task] for task in first], axis=0))
    before, after = totals

    # Correlate the affinities of pairs of tasks in one set with those of the same pairs in another.
    pairs = [(one, other) for one, other in combinations(sets, 2) if len(set(one) & set(other)) > 1]
    pooled = {tasks: pool_seeds(by_seed) for tasks, by_seed in measured.items()}
    between = [(pooled[one], pooled[other]) for one, other in pairs]
    rows = [
        _correlation_row("other company", between),
        _correlation_row(f"the first set and a {DESTRUCTIVE} task", [(pooled[first], pool_seeds(harmed))]),
    ]
    by_seed = [
        (
            pearson(*shared_affinities([(measured[one][seed], measured[other][seed]) for one, other in pairs])),
            pearson(*shared_affinities([(measured[first][seed], affinity)])),
        )
        for seed, affinity in harmed.items()
    ]
    maintained = shared_affinities(between)
    shown = [replace(pooled[tasks], tasks=setup.short_names(tasks)) for tasks in paper_sets or sets[:2]]
    return Report(
        "task-sets",
        TITLE,
        tables=[
            ReportTable("The same pairs of tasks in two sets", CORRELATION_COLUMNS, rows),
            ReportTable(
                f"Does the {DESTRUCTIVE} task harm the first set? Its total {setup.label()}",
                ("without it", "with it", "more, %"),
                [[*map(setup.summarize, totals), summarize(100 * (after - before) / np.where(before, before, np.nan))]],
            ),
            *_target_tables(shown if paper_sets else ()),
        ],
        claims=[
            claim_correlation(
                "the affinity between two tasks is largely maintained in another set",
                pearson(*maintained),
                yes=0.7,
                over=f" over {maintained.shape[1]} affinities",
            ),
            claim_affinities_change(by_seed, judge_lower(before, after, per_row=setup.per_row)),
        ],
        figures={
            f"task-sets-{place}": affinity_heatmap(
                affinity, center="target", compare_with=other, title=f"Trained with {', '.join(affinity.tasks)}"
            )
            for place, (affinity, other) in enumerate(zip(shown, reversed(shown), strict=True), 1)
        },
        notes=[
            *replace(setup, tasks=names).notes,
            f"{len(sets)} sets of {len(first)} tasks, drawn from {len(names)}; the {DESTRUCTIVE} task, in the first "
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
        expected = f"must name at least {MIN_TASKS} tasks for task-sets (so that any two sets share a pair)"
        raise InvalidInput("tasks", expected, f"{len(names)}: {', '.join(names)}", "or omit `tasks` to use all of them")
    return tuple(names)


def random_sets(names: Tasks, count: int, seed: int) -> list[Tasks]:
    """Draws random sets of up to five tasks, each in the problem's order."""
    random = np.random.default_rng([seed, len(names)])
    size = min(SET_SIZE, len(names) - 1)
    drawn = [np.sort(random.choice(len(names), size, replace=False)) for _ in range(count)]
    return [tuple(names[place] for place in places) for places in drawn]


def shared_affinities(pairs: Iterable[tuple[Affinity, Affinity]], *, centered: bool = False) -> Array:
    """Returns the affinities that two sets of tasks share, for pairs of sets, as an array [2, affinities].

    Args:
        pairs: the affinities in the two sets of each pair.
        centered: whether to subtract each target's mean, for sets that share more than two tasks.
    """
    shared = [np.zeros((2, 0))]
    for one, other in pairs:
        tasks = [task for task in one.tasks if task in other.tasks]
        if len(tasks) > 2 or not centered:
            shared.append(np.stack([off_diagonal(a.only(tasks), centered=centered) for a in (one, other)]))
    return np.concatenate(shared, axis=1)


def _correlation_row(name: str, pairs: Sequence[tuple[Affinity, Affinity]]) -> list[Cell]:
    raw, centered = shared_affinities(pairs), shared_affinities(pairs, centered=True)
    return [name, len(pairs), raw.shape[1], *(Value(pearson(*values), digits=3) for values in (raw, centered))]


def _target_tables(affinities: Sequence[Affinity]) -> list[ReportTable]:
    tables = []
    for target in SHOWN_TARGETS if affinities else ():
        rows = []
        for affinity in affinities:
            onto = dict(zip(affinity.tasks, 1000 * affinity.mean[:, affinity.tasks.index(target)], strict=True))
            sources = [f"{source} {number:.2f}" for source, number in onto.items() if source != target]
            rows.append([" ".join(affinity.tasks), "  ".join(sources)])
        columns, note = ("trained with", "affinities"), "the paper prints this as a picture"
        tables.append(ReportTable(f"Affinity × 1000 onto {target}", columns, rows, note))
    return tables


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
        tasks = (*rows.tasks, DESTRUCTIVE)
        return replace(rows, reader=ShuffledLabelReader(tasks, rows.reader, task, order), tasks=tasks)
    split = require_in_memory(rows, "a destructive task")
    labels = split.targets[task][order.to(split.inputs.device)]
    return replace(split, targets={**split.targets, DESTRUCTIVE: labels})


@dataclass(frozen=True, eq=False)
class ShuffledLabelReader:
    """Reads rows with an additional label, which is a task's label from another row.

    Attributes:
        tasks: the reader's tasks and the destructive task.
        reader: the reader for the original rows.
        task: the task that provides the labels.
        order: for each row, the index of the row that provides its label.
    """

    tasks: Tasks
    reader: Reader
    task: str
    order: Tensor

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
