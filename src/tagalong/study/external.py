"""A study whose networks are trained elsewhere: what to train next, what came back, and the results of it.

Everything told is kept in `told.json`, losses of rows beside it, so that it goes on after a stop.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tagalong.errors import refuse
from tagalong.files import pack_arrays, read_document, unpack_arrays, write_atomic, write_document
from tagalong.group import Group
from tagalong.score import Score

from .planning import Plan
from .records import Cost, Label, ProblemInfo, Record
from .relative_losses import Subset
from .results import Results
from .uncertainty import row_noise

FORMAT, VERSION, FILE, ROWS = "tagalong-told", 1, "told.json", "told"
Losses = Mapping[str, float | Sequence[float]]


class External:
    """Asks for networks and is told their results; every result is kept, so that it goes on after a stop.

    Args:
        plan: what to train, see `plan`; None: go on with the plan in `out`.
        out: the folder of the run; None keeps results in memory only.

    Example:
        >>> from tagalong.study import plan
        >>> external = External(plan(None, [], methods=["stl"], seeds=2, tasks=["age", "ill"]))
        >>> while (network := external.ask()) is not None:
        ...     tasks, seed = network
        ...     losses = {task: 1.0 + 0.5 * (len(tasks) == 1) for task in tasks}  # your training
        ...     external.tell(tasks, seed, val=losses, test=losses)
        >>> external.results().verdict().worth_it
        False
    """

    def __init__(self, plan: Plan | None, out: str | Path | None = None) -> None:
        self.out = None if out is None else Path(out)
        self._ledger = _going_on(plan, self.out)
        self._asked = self._ledger.plan  # without what validation decides later
        self._save()

    @property
    def plan(self) -> Plan:
        """The networks to train, as far as is known by now."""
        return self._ledger.plan

    def ask(self) -> tuple[tuple[str, ...], int] | None:
        """Tasks and seed of the network to train next; None if everything has been told."""
        return next(iter(self._ledger.pending), None)

    def pending(self) -> list[tuple[tuple[str, ...], int]]:
        """All networks that can be trained now, for those who train several at a time."""
        return self._ledger.pending

    def tell(
        self,
        tasks: Sequence[str],
        seed: int,
        *,
        val: Losses,
        test: Losses,
        rows: Mapping[str, Any] | None = None,
        steps: int | None = None,
        seconds: float | None = None,
        parameters: int | None = None,
    ) -> None:
        """Takes in how a network did; in any order.

        Args:
            tasks: it was trained on.
            seed: it was trained with.
            val: for each task its validation loss, or (loss, error).
            test: the same on test rows.
            rows: for each task the loss of every test row, NaN where there is no label; without them the interval of
                the verdict does not know the noise of the test rows.
            steps: of the optimiser.
            seconds: of training.
            parameters: of the network.
        """
        self._ledger.tell(self._checked(tasks, seed), int(seed), val, test, rows, steps, seconds, parameters)
        self._save()

    def results(self) -> Results:
        """The results, with table and verdict, once every network has been told."""
        return self._ledger.results(ProblemInfo.named(self.plan.tasks), self.out)

    def _checked(self, tasks: Sequence[str], seed: int) -> tuple[str, ...]:
        given = frozenset([tasks] if isinstance(tasks, str) else tasks)
        network = (self.plan.ordered(given), seed)
        problems = []
        if given - set(self.plan.tasks) or network not in self.plan.networks:
            following = self.ask()
            hint = "everything has been told" if following is None else f"ask() gives {following!r} next"
            problems.append(
                f"`tasks` and `seed` must be a network of the plan, found {sorted(given)}, {seed!r}; {hint}"
            )
        elif (given, seed) in self._ledger.told:
            problems.append(f"`tasks` and `seed`: {sorted(given)} with seed {seed} was told before; use a new `out`")
        refuse(problems)
        return network[0]

    def _save(self) -> None:
        if self.out is not None:
            _write(self.out, self._asked, self._ledger.told)


def _going_on(plan: Plan | None, out: Path | None) -> Ledger:
    saved = _read(out) if out is not None and has_plan(out) else None
    if saved is None:
        if plan is None:
            raise ValueError(f"`plan` must be given where no plan is stored, found none in {out}")
        return Ledger(plan)
    if plan is not None and _plan_document(plan) != _plan_document(saved.plan):
        raise ValueError(f"`out` must hold results of this plan, found those of another in {out}; use a new one")
    return saved


@dataclass(frozen=True, eq=False)
class Told:
    """How one network did.

    Attributes:
        val: validation outcome of each of its tasks.
        test: test outcome.
        rows: the test loss of every row of each task; None if not told.
        cost: what training it took, as far as it was told.
        parameters: of the network; 0 if not told.
    """

    val: Mapping[str, Score]
    test: Mapping[str, Score]
    rows: Mapping[str, NDArray[Any]] | None = None
    cost: Cost = field(default_factory=lambda: Cost(1))
    parameters: int = 0


class Ledger:
    """A plan and what has been told about its networks so far."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.told: dict[tuple[Subset, int], Told] = {}

    @property
    def pending(self) -> list[tuple[tuple[str, ...], int]]:
        """Tasks and seed of every network still to be told, in the order to train them."""
        waiting = self._untold()
        if not waiting and self.plan.undecided:
            self.plan = self.plan.decided(lambda subset, task, seed: self.told[subset, seed].val[task].loss)
            waiting = self._untold()
        return waiting

    def _untold(self) -> list[tuple[tuple[str, ...], int]]:
        return [(tasks, seed) for tasks, seed in self.plan.networks if (frozenset(tasks), seed) not in self.told]

    def tell(self, tasks: Sequence[str], seed: int, *found: Any, **costs: Any) -> None:
        """Takes in how a network did; see `check_told` for what."""
        told = check_told(tasks, *found, **costs)
        if told.rows is not None:
            lengths = {len(rows) for one in (told, *self.told.values()) for rows in (one.rows or {}).values()}
            if len(lengths) > 1:
                listed = " and ".join(map(str, sorted(lengths)))
                raise ValueError(f"`rows` must be the same test rows for every network, found {listed}")
        self.told[frozenset(tasks), seed] = told

    def results(self, problem: ProblemInfo, out: Path | None = None) -> Results:
        """The results, once every network has been told."""
        if waiting := self.pending:
            names = [f"{'+'.join(tasks)} (seed {seed})" for tasks, seed in waiting]
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            missing = f"{', '.join(names[:5])}{more}"
            raise ValueError(f"results of {len(names)} networks are missing: {missing}; train them and add theirs")
        records = [
            self._record(label, groups, seed)
            for label, groups in self.plan.groupings.items()
            for seed in self.plan.seeds
        ]
        settings = {name: list(getattr(self.plan, name)) for name in ("methods", "budgets", "seeds")}
        return Results(records, problem=problem, noise=self._noise(records), settings=settings, out=out)

    def _record(self, label: Label, groups: tuple[Group, ...], seed: int) -> Record:
        found = [self.told[group.trains, seed] for group in groups]
        where = {task: told for group, told in zip(groups, found, strict=True) for task in group.serves}
        deciding = [self.told[subset, seed].cost for subset in self.plan.deciding(label[0])]
        known = all(told.parameters for told in found)
        return Record(
            *label,
            seed=seed,
            groups=groups,
            val={task: where[task].val[task] for task in self.plan.tasks},
            test={task: where[task].test[task] for task in self.plan.tasks},
            deciding=sum(deciding, Cost()),
            training=sum((told.cost for told in found), Cost()),
            parameters=sum(told.parameters for told in found) if known else 0,
        )

    def _noise(self, records: Sequence[Record]) -> dict[Label, float]:
        """Of the groupings whose row losses are all known."""
        known = [record for record in records if self._rows(record) is not None]
        labels = {record.label for record in records if self._rows(record) is None}
        complete = [record for record in known if record.label not in labels]
        return row_noise(complete, lambda record: self._rows(record) or {})

    def _rows(self, record: Record) -> dict[str, NDArray[Any]] | None:
        rows: dict[str, NDArray[Any]] = {}
        for group in record.groups:
            told = self.told[group.trains, record.seed].rows
            if told is None:
                return None
            rows |= {task: told[task] for task in group.serves}
        return rows


def check_told(
    tasks: Sequence[str],
    val: Losses,
    test: Losses,
    rows: Mapping[str, Any] | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    parameters: int | None = None,
) -> Told:
    """What was told about a network, refused with every problem at once if it cannot be."""
    problems: list[str] = []
    outcomes = {}
    for part, given in (("val", val), ("test", test)):
        _same_tasks(problems, part, given, tasks)
        outcomes[part] = {task: _outcome(problems, part, task, given[task]) for task in tasks if task in given}
    if rows is not None:
        _same_tasks(problems, "rows", rows, tasks)
        rows = {task: np.asarray(values, dtype=np.float32) for task, values in rows.items()}
        if len({values.shape for values in rows.values()}) > 1 or any(values.ndim != 1 for values in rows.values()):
            problems.append(
                "`rows` must be one loss per test row, as many for every task (NaN where there is no label)"
            )
    for name, number in (("steps", steps), ("seconds", seconds), ("parameters", parameters)):
        if number is not None and not (math.isfinite(number) and number >= 0):
            problems.append(f"`{name}` must be a number from 0, found {number!r}")
    refuse(problems)
    cost = Cost(1, int(steps or 0), float(seconds or 0.0))
    return Told(outcomes["val"], outcomes["test"], rows, cost, int(parameters or 0))


def _same_tasks(problems: list[str], argument: str, given: Mapping[str, Any], tasks: Sequence[str]) -> None:
    missing = [task for task in tasks if task not in given]
    extra = [task for task in given if task not in tasks]
    if missing or extra:
        found = [f"nothing for {name!r}" for name in missing] + [f"{name!r} besides" for name in extra]
        problems.append(f"`{argument}` must have a value for each of {', '.join(tasks)}, found {', '.join(found)}")


def _outcome(problems: list[str], part: str, task: str, given: float | Sequence[float]) -> Score:
    pair = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    try:
        loss, *error = (float(value) for value in pair)
        if len(error) > 1:
            raise ValueError
    except (TypeError, ValueError):
        problems.append(f"`{part}`: {task!r} must be a loss or (loss, error), found {given!r}")
        return Score(math.nan, math.nan)
    if not math.isfinite(loss):
        problems.append(f"`{part}`: the loss of {task!r} must be a finite number, found {loss}; did it diverge?")
    return Score(loss, error[0] if error else math.nan)


def has_plan(out: Path) -> bool:
    """Whether a plan is stored in this folder."""
    return (out / FILE).exists()


def _write(out: Path, plan: Plan, told: Mapping[tuple[Subset, int], Told]) -> None:
    """Losses of rows first, the JSON that names them last."""
    entries = []
    for (subset, seed), one in told.items():
        tasks = plan.ordered(subset)
        archive = None if one.rows is None else _write_rows(out, tasks, seed, one.rows)
        entries.append({"tasks": list(tasks), "seed": seed, "rows": archive, **_told_document(one)})
    write_document(out / FILE, FORMAT, VERSION, {"plan": _plan_document(plan), "told": entries})


def _read(out: Path) -> Ledger:
    """The plan and everything told so far."""
    hint = "plan the study again in another folder"
    return read_document(out / FILE, FORMAT, (VERSION,), lambda document: _ledger(document, out), hint=hint)


def _ledger(document: Mapping[str, Any], out: Path) -> Ledger:
    entry = document["plan"]
    groupings = {
        (one["method"], one["budget"]): tuple(Group(group["trains"], group["serves"]) for group in one["groups"])
        for one in entry["groupings"]
    }
    plain = {name: tuple(entry[name]) for name in ("tasks", "methods", "budgets", "seeds")}
    ledger = Ledger(Plan(**plain, groupings=groupings))
    for one in document["told"]:
        ledger.told[frozenset(one["tasks"]), one["seed"]] = _told(out, one)
    return ledger


def _plan_document(plan: Plan) -> dict[str, Any]:
    """A plan as JSON can hold it."""
    document: dict[str, Any] = {name: list(getattr(plan, name)) for name in ("tasks", "methods", "budgets", "seeds")}
    document["groupings"] = [
        {"method": method, "budget": budget, "groups": [_group(group) for group in groups]}
        for (method, budget), groups in plan.groupings.items()
    ]
    return document


def _group(group: Group) -> dict[str, list[str]]:
    return {"trains": sorted(group.trains), "serves": sorted(group.serves)}


def _told_document(told: Told) -> dict[str, Any]:
    document: dict[str, Any] = {
        part: {task: [outcome.loss, outcome.error] for task, outcome in getattr(told, part).items()}
        for part in ("val", "test")
    }
    return document | {"steps": told.cost.steps, "seconds": told.cost.seconds, "parameters": told.parameters}


def _told(out: Path, entry: Mapping[str, Any]) -> Told:
    outcomes = {
        part: {task: Score(loss, math.nan if error is None else error) for task, (loss, error) in entry[part].items()}
        for part in ("val", "test")
    }
    rows: dict[str, NDArray[Any]] | None = None
    if entry["rows"] is not None:
        archive = unpack_arrays((out / entry["rows"]).read_bytes())
        rows = {task: archive[f"rows_{number}"] for number, task in enumerate(entry["tasks"])}
    cost = Cost(1, entry["steps"], entry["seconds"])
    return Told(outcomes["val"], outcomes["test"], rows, cost, entry["parameters"])


def _write_rows(out: Path, tasks: tuple[str, ...], seed: int, rows: Mapping[str, NDArray[Any]]) -> str:
    name = f"{ROWS}/{hashlib.sha256(repr((tasks, seed)).encode()).hexdigest()[:16]}.npz"
    if not (out / name).exists():  # a network is told once
        named = {f"rows_{number}": rows[task] for number, task in enumerate(tasks)}
        write_atomic(out / name, pack_arrays(named, compress=True))
    return name
