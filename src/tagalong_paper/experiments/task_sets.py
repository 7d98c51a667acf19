"""`task-sets`: is the affinity between two tasks the same in other company?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from tagalong.affinity import Affinity
from tagalong.learn import Batch, Problem, Reader, Rows, Split, StreamedRows, derive_seed, require_in_memory
from tagalong.report import affinity_heatmap

from ..affinities import measured, named, pooled
from ..bench import FEW
from ..claims import correlated, lower, pearson, value
from ..report import Appeared, Cell, Claim, Report, Sheet, Value
from ..totals import digits_of, measure_of, one_row, results_of

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from ..bench import Bench

TITLE = "Are affinities maintained in another set of tasks?"
FIRST = ("5_o_Clock_Shadow", "Black_Hair", "Blond_Hair", "Brown_Hair", "No_Beard")  # a1, a2, a3, a4, a7
SECOND = ("5_o_Clock_Shadow", "Goatee", "No_Beard", "Rosy_Cheeks", "Wearing_Hat")  # a1, a5, a7, a8, a9
SETS = {"small": 3, "full": 12}
SIZE = 5
FEWEST = 4  # sets of three, any two of which share a pair
CLEAR = 0.7
DESTRUCTIVE, WEIGHT = "destructive", 20.0
Tasks = tuple[str, ...]


def run(bench: Bench) -> Report:
    """Measures the paper's two sets, random ones, and one with a task that only harms."""
    names = pool(bench)
    drawn = random_sets(names, SETS[bench.size], bench.seeds[0])
    paper: list[Tasks] = [tasks for tasks in (FIRST, SECOND) if set(tasks) <= set(names)]
    sets = list(dict.fromkeys([*paper, *drawn]))
    harmful = with_destructive_task(bench.problem.only(sets[0]))
    by_seed = {tasks: _affinities(bench, bench.problem.only(tasks)) for tasks in sets}
    found = {tasks: pooled(each) for tasks, each in by_seed.items()}
    harmed = {seed: affinity.only(sets[0]) for seed, affinity in _affinities(bench, harmful).items()}
    without, within = (_totals(bench, problem, sets[0]) for problem in (bench.problem.only(sets[0]), harmful))
    pairs = [(one, other) for one, other in combinations(sets, 2) if len(set(one) & set(other)) > 1]
    together = _shared([(found[one], found[other]) for one, other in pairs])
    alone = _shared([(found[sets[0]], pooled(harmed))])
    each = [
        (
            _shared([(by_seed[one][seed], by_seed[other][seed]) for one, other in pairs])["raw"],
            _shared([(by_seed[sets[0]][seed], affinity)])["raw"],
        )
        for seed, affinity in harmed.items()
    ]
    return Report(
        "task-sets",
        TITLE,
        sheets=[_sheet(together, alone, len(pairs)), _harm(bench, without, within), *_maps(bench, found, paper)],
        claims=[_maintained(together), changes(each, lower(without, within, row=one_row(bench.chosen)))],
        figures=_figures(bench, {tasks: named(bench, found[tasks]) for tasks in paper or sets[:2]}),
        notes=[
            *replace(bench, tasks=names).about,
            f"{len(sets)} sets of {len(sets[0])} tasks, drawn from {len(names)}; {DESTRUCTIVE}: labels of other rows, "
            "with a large weight, in the first set",
        ],
    )


def pool(bench: Bench) -> Tasks:
    """The tasks that sets are drawn from: those asked for; else all, also at small size.

    Raises:
        ValueError: so few tasks that two sets of them would not share a pair.
    """
    # The five that stand for all at small size were not asked for, and are too few for the paper's sets.
    names = bench.problem.names if bench.tasks is None or bench.tasks is FEW else bench.chosen.names
    if len(names) < FEWEST:
        raise ValueError(
            f"`tasks` must name {FEWEST} tasks or more for task-sets, so that two different sets of them share a pair, "
            f"found {len(names)}: {', '.join(names)}; name more, or leave them out for all of the problem's"
        )
    return tuple(names)


def random_sets(names: Tasks, count: int, seed: int) -> list[Tasks]:
    """Sets of five tasks, or one less than there are, in the order of the problem."""
    random = np.random.default_rng([seed, len(names)])
    size = min(SIZE, len(names) - 1)
    drawn = [set(random.choice(len(names), size, replace=False).tolist()) for _ in range(count)]
    return [tuple(name for place, name in enumerate(names) if place in chosen) for chosen in drawn]


def _affinities(bench: Bench, problem: Problem) -> dict[int, Affinity]:
    with bench.lab(problem) as lab:
        return measured(lab, bench.seeds, every=1 if bench.small else 10)


def _totals(bench: Bench, problem: Problem, tasks: Tasks) -> list[float]:
    """Of these tasks in one network for all of the problem's, for every seed; the network is there already."""
    with bench.lab(problem) as lab:
        found = results_of(lab, problem.names, bench.seeds)
    return [sum(each) for each in zip(*(found[task] for task in tasks), strict=True)]


def _shared(pairs: list[tuple[Affinity, Affinity]]) -> dict[str, float]:
    """Pearson over all affinities between tasks that two sets share, and over their order onto each target."""
    raw: list[tuple[float, float]] = []
    centred: list[tuple[float, float]] = []
    for one, other in pairs:
        tasks = [task for task in one.tasks if task in other.tasks]
        first, second = one.only(tasks).mean, other.only(tasks).mean
        off = ~np.eye(len(tasks), dtype=bool)
        raw += zip(first[off].tolist(), second[off].tolist(), strict=True)
        if len(tasks) > 2:
            less = [np.where(off, m, np.nan) - np.nanmean(np.where(off, m, np.nan), axis=0) for m in (first, second)]
            centred += zip(less[0][off].tolist(), less[1][off].tolist(), strict=True)
    return {
        "raw": pearson(*np.array(raw).T) if raw else float("nan"),
        "centred": pearson(*np.array(centred).T) if centred else float("nan"),
        "values": float(len(raw)),
    }


def with_destructive_task(problem: Problem) -> Problem:
    """The problem with one more task: the first task's labels, each taken from another row, weighing much.

    Nothing can be learnt from it beyond the share of each label, and its gradients outweigh all others.
    """
    task = replace(problem.tasks[0], name=DESTRUCTIVE, weight=WEIGHT)
    train, val, test = (_spoilt(part, rows, problem.names[0]) for part, rows in problem.splits.items())
    return replace(problem, tasks=(*problem.tasks, task), train=train, val=val, test=test)


def _spoilt(part: str, rows: Rows, task: str) -> Rows:
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(derive_seed(0, "destructive", part)))
    if isinstance(rows, StreamedRows):
        return replace(rows, reader=Spoilt(rows.reader, task, order), tasks=(*rows.tasks, DESTRUCTIVE))
    split: Split = require_in_memory(rows, "a task that only harms")
    labels = split.targets[task][order.to(split.inputs.device)]
    return replace(split, targets={**split.targets, DESTRUCTIVE: labels})


@dataclass(frozen=True, eq=False)
class Spoilt:
    """Reads rows with one more label: that of a task, from another row.

    Attributes:
        reader: of the rows.
        task: whose labels are taken.
        order: of each row, which row its label comes from.
    """

    reader: Reader
    task: str
    order: Tensor

    @property
    def tasks(self) -> tuple[str, ...]:
        """The reader's, and the one that harms."""
        return (*self.reader.tasks, DESTRUCTIVE)

    def __len__(self) -> int:
        return len(self.reader)

    def read(self, row: int, tasks: Sequence[str], draw: int | None) -> Batch:
        """One row, with both labels as chance has them."""
        inputs, targets = self.reader.read(row, [task for task in tasks if task != DESTRUCTIVE], draw)
        if DESTRUCTIVE in tasks:
            targets[DESTRUCTIVE] = self.reader.read(int(self.order[row]), [self.task], draw)[1][self.task]
        return inputs, targets

    def contents(self) -> Iterator[bytes]:
        """The reader's, and which label is whose."""
        yield from self.reader.contents()
        yield f"{DESTRUCTIVE} {self.task} {self.order.tolist()}".encode()


def _sheet(together: dict[str, float], alone: dict[str, float], pairs: int) -> Sheet:
    rows: list[list[Cell]] = [
        [name, number, int(found["values"]), Value(found["raw"], digits=3), Value(found["centred"], digits=3)]
        for name, number, found in (
            ("other company", pairs, together),
            (f"the first set and a {DESTRUCTIVE} task", 1, alone),
        )
    ]
    columns = ("compared", "pairs of sets", "affinities", "Pearson", "less the mean onto each target")
    return Sheet("The same pairs of tasks in two sets", columns, rows)


def _harm(bench: Bench, without: list[float], within: list[float]) -> Sheet:
    digits = digits_of(bench.chosen)
    more = [
        100 * (after - before) / before if before else float("nan")
        for before, after in zip(without, within, strict=True)
    ]
    row: list[Cell] = [value(without, digits=digits), value(within, digits=digits), value(more)]
    title = f"Does the {DESTRUCTIVE} task harm the first set? Its total {measure_of(bench.chosen)}"
    return Sheet(title, ("without it", "with it", "more, %"), [row])


def _maps(bench: Bench, affinities: dict[Tasks, Affinity], paper: list[Tasks]) -> list[Sheet]:
    """Affinities onto a1 and a7 in the paper's two sets."""
    sheets = []
    for target in ("5_o_Clock_Shadow", "No_Beard"):
        rows: list[list[Cell]] = []
        for tasks in paper:
            affinity = affinities[tasks]
            onto = affinity.mean[:, affinity.tasks.index(target)]
            shown = [
                f"{bench.short(task)} {1000 * found:.2f}"
                for task, found in zip(tasks, onto, strict=True)
                if task != target
            ]
            rows.append([" ".join(map(bench.short, tasks)), "  ".join(shown)])
        if rows:
            title = f"Affinity × 1000 onto {bench.short(target)}"
            sheets.append(Sheet(title, ("trained with", "affinities"), rows, "the paper prints this as a picture"))
    return sheets


def _maintained(together: dict[str, float]) -> Claim:
    text = "the affinity between two tasks is largely maintained in another set"
    return correlated(text, together["raw"], yes=CLEAR, more=f" over {together['values']:.0f} affinities")


def changes(each: Sequence[tuple[float, float]], harms: Appeared) -> Claim:
    """Whether affinities are clearly less alike with a task that harms than in other company; it must harm to tell.

    Args:
        each: for every seed the correlation between sets without it, and that of one set with and without it.
        harms: whether totals of that set are clearly higher with it.
    """
    text = "a task that harms the network changes affinities between the others"
    together, alone = zip(*each, strict=True)
    because = (
        f"with single seeds Pearson {np.mean(alone):.2f} with it, {np.mean(together):.2f} between sets without it; "
        f"it harms: {harms}"
    )
    answer = lower(alone, together)
    if answer == "not tested" or harms == "no":
        return Claim(text, "not tested", because)
    return Claim(text, answer if harms == "yes" else "within noise", because)


def _figures(bench: Bench, found: Mapping[Tasks, Affinity]) -> dict[str, Figure]:
    """A heat map of each of two sets, in the colours of both, so that they compare."""
    return {
        f"task-sets-{place + 1}": affinity_heatmap(
            affinity, centre="target", compare_with=other, title=f"Trained with {', '.join(map(bench.short, tasks))}"
        )
        for place, ((tasks, affinity), other) in enumerate(zip(found.items(), reversed([*found.values()]), strict=True))
    }
