"""Does a problem keep the promises of `tagalong.learn.Problem`, its rows those of `Rows`?"""

from __future__ import annotations

import copy
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tagalong.errors import InvalidInput, collect
from tagalong.learn import Job, Problem, Rows, Split, build_network, check_data, train
from tagalong.problems import load_problem

from .promises import Promises, expect, name_of, reseeded

MOST_ROWS = 256  # that are trained on
MOST_COMPARED = 5000  # rows of a part that are looked for in another
EPOCHS = 2
LEAK = 0.1  # share of rows in two parts, beyond that of rows that a part has twice


def check_problem(
    problem: str | Problem | Callable[..., Problem],
    *,
    ids: Mapping[str, Iterable[Any]] | None = None,
    **options: Any,
) -> None:
    """Loads a problem twice, trains on some of its rows, and checks what `Problem` and its rows promise.

    Tasks and data agree and every task has labels in every part; no row is in two parts; rows come back as they were
    asked for, the same for the same seed; networks for all tasks and for one are built and trained for two epochs with
    finite losses, twice the same; the fingerprint is the same at every load and changes with the data; the problem
    survives the way to a worker process.

    Args:
        problem: a name that `load_problem` knows, a function that makes the problem (loaded twice, so give it rather
            than its result), or a problem.
        ids: of the rows of "train", "val" and "test", where rows have ids that must not be in two parts. Without them
            the groups of rows in memory are compared, if there are any, else the rows themselves. Rows read from
            files are compared by ids alone: their groups are numbered in each part.
        **options: of the problem.

    Raises:
        BrokenPromises: lists every promise that is not kept.

    Example:
        >>> check_problem("faces", rows=300, pixels=8)
    """
    promises = Promises(f"problem {name_of(problem)!r}")
    loaded: list[Problem] = []
    for chance in (0, 1):
        with promises.that("it can be loaded"), reseeded(chance):
            loaded.append(_load(problem, options))
    if len(loaded) == 2:
        with reseeded(2):
            _check_data(promises, loaded[0], ids)
            _check_identity(promises, *loaded)
            _check_rows(promises, loaded[0])
            with promises.that("networks are built and trained"):
                _check_networks(promises, _in_memory(loaded[0]))
    promises.settle()


def _load(problem: str | Problem | Callable[..., Problem], options: Mapping[str, Any]) -> Problem:
    if isinstance(problem, Problem):
        return replace(problem)  # without what it has computed so far
    found = load_problem(problem, **options) if isinstance(problem, str) else problem(**options)
    expect(isinstance(found, Problem), f"the loader must give a Problem, found {type(found).__name__}")
    return found


def _check_data(promises: Promises, problem: Problem, ids: Mapping[str, Iterable[Any]] | None) -> None:
    with promises.that("tasks and data agree"):
        problems: list[InvalidInput] = []
        collect(problems, check_data, problem)
        expect(not problems, "; ".join(map(str, problems)))
    with promises.that("every task has labels in every part"):
        for part, rows in problem.splits.items():
            bare = [task for task in problem.names if not bool(rows.labelled(task).any())]
            expect(not bare, f"`{part}` has none of {', '.join(bare)}")
    with promises.that("no row is in two parts"):
        _check_disjoint(problem, ids)


def _check_disjoint(problem: Problem, ids: Mapping[str, Iterable[Any]] | None) -> None:
    held = {part: rows for part, rows in problem.splits.items() if isinstance(rows, Split)}
    if ids is not None:
        known: dict[str, Iterable[Any]] = {part: ids[part] for part in problem.splits}
        what = "ids"
    else:
        known = {part: rows.groups.tolist() for part, rows in held.items() if rows.groups is not None}
        what = "groups of rows"
    for a, b in combinations(known, 2):
        both = set(known[a]) & set(known[b])
        some = ", ".join(map(repr, sorted(both, key=repr)[:3]))
        expect(not both, f"`{a}` and `{b}` have {len(both)} {what} in common, such as {some}")
    if not known:
        _check_contents_disjoint(held)


def _check_contents_disjoint(splits: Mapping[str, Split]) -> None:
    """Rows that are equal in every number may be chance where inputs are few; but not more often than within a part."""
    digests = {part: _row_digests(rows) for part, rows in splits.items()}
    for a, b in combinations(digests, 2):
        twice = sum(times for times in Counter(digests[a]).values() if times > 1) / max(1, len(digests[a]))
        there = set(digests[a])
        both = sum(digest in there for digest in digests[b]) / max(1, len(digests[b]))
        expect(both <= twice + LEAK, f"{both:.0%} of the rows of `{b}` are in `{a}` too, number by number")


def _row_digests(rows: Split) -> list[bytes]:
    number = min(len(rows), MOST_COMPARED)
    inputs, targets = rows.batch(torch.arange(number))
    columns = [_bytes(inputs), *(_bytes(targets[task]) for task in sorted(targets))]
    return [hashlib.sha256(b"".join(row.tobytes() for row in parts)).digest() for parts in zip(*columns, strict=True)]


def _bytes(tensor: Tensor) -> Any:
    return np.ascontiguousarray(tensor.detach().cpu().numpy()).reshape(len(tensor), -1)


def _check_identity(promises: Promises, problem: Problem, again: Problem) -> None:
    with promises.that("the fingerprint is the same at every load"):
        prints = problem.fingerprint, again.fingerprint, replace(problem).fingerprint
        expect(len(set(prints)) == 1, f"found {' and '.join(dict.fromkeys(prints))}; seed what is drawn while loading")
    with promises.that("the fingerprint changes with the data"):
        for part, rows in problem.splits.items():
            if isinstance(rows, Split):
                other = _with_parts(problem, {part: _with_another_label(rows, problem.names[0])})
                expect(other.fingerprint != problem.fingerprint, f"another label in `{part}` left it as it was")
    with promises.that("it survives the way to a worker process (cloudpickle)"):
        import cloudpickle

        there = cloudpickle.loads(cloudpickle.dumps(problem))
        expect(there.fingerprint == problem.fingerprint, "its fingerprint changed on the way")
        mine, theirs = (_state(build_network(one, one.names, 0)) for one in (problem, there))
        expect(_equal(mine, theirs), "its networks have other first weights there")


def _with_parts(problem: Problem, parts: Mapping[str, Rows]) -> Problem:
    splits = {**problem.splits, **parts}
    return replace(problem, train=splits["train"], val=splits["val"], test=splits["test"])


def _with_another_label(rows: Split, task: str) -> Split:
    labels = rows.targets[task].clone()
    labels.view(-1)[int(labels.isfinite().view(-1).nonzero()[0])] += 1
    return replace(rows, targets={**rows.targets, task: labels})


def _check_rows(promises: Promises, problem: Problem) -> None:
    for part, rows in problem.splits.items():
        with promises.that(f"`{part}` gives rows as they are asked for"):
            _check_batch(rows, problem.names)
    with promises.that("the same seed gives the same batches"):
        parts = list(torch.arange(min(len(problem.train), 8)).split(4))
        first, second = ([*problem.train.batches(parts, (0, 1))] for _ in range(2))
        expect(len(first) == len(parts), f"{len(first)} batches came for {len(parts)}")
        same = all(_equal(_flat(a), _flat(b)) for a, b in zip(first, second, strict=True))
        expect(same, "rows of seed 0 and epoch 1 differ when they are read again")
    with promises.that("`only` keeps the rows and drops other tasks"):
        one = problem.only(problem.names[:1])
        expect(one.names == problem.names[:1], f"found the tasks {', '.join(one.names)}")
        for part, rows in one.splits.items():
            expect(tuple(rows.tasks) == one.names, f"`{part}` still has {', '.join(rows.tasks)}")
            expect(len(rows) == len(problem.splits[part]), f"`{part}` has another number of rows")


def _check_batch(rows: Rows, names: Sequence[str]) -> None:
    last = len(rows) - 1
    inputs, targets = rows.batch(torch.tensor([last, 0]))
    expect(len(inputs) == 2, f"2 rows were asked for, {len(inputs)} came")
    missing = [name for name in names if name not in targets]
    expect(not missing, f"there are no targets of {', '.join(missing)}")
    for name in names:
        expect(targets[name].is_floating_point(), f"the target of {name!r} must be floating point")
    single = rows.batch(torch.tensor([last]))
    alone = {name: tensor[:1] for name, tensor in _flat((inputs, targets)).items()}
    expect(_equal(alone, _flat(single)), "a row is another one when it comes alone")
    only = rows.only(names[:1]).to("cpu").batch(torch.tensor([last, 0]))
    expect(torch.equal(only[0], inputs) and set(only[1]) == {names[0]}, "`only` changed the rows")


def _flat(batch: tuple[Tensor, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    inputs, targets = batch
    return {"inputs": inputs, **{f"target {name}": target for name, target in targets.items()}}


def _in_memory(problem: Problem) -> Problem:
    """Some rows of each part, those with labels of every task among them, to be trained in no time."""
    splits = {part: _some_rows(rows, problem.names) for part, rows in problem.splits.items()}
    recipe = replace(problem.recipe, batch_size=min(problem.recipe.batch_size, MOST_ROWS // 4), amp=None)
    return replace(_with_parts(problem, splits), recipe=recipe)


def _some_rows(rows: Rows, names: Sequence[str]) -> Split:
    every = max(1, len(rows) // MOST_ROWS)
    labelled = [rows.labelled(name).nonzero().flatten()[:8] for name in names]
    chosen = torch.cat([torch.arange(0, len(rows), every), *labelled]).unique()
    inputs, targets = rows.batch(chosen)
    return Split(inputs.cpu(), {name: target.cpu() for name, target in targets.items()})


def _check_networks(promises: Promises, problem: Problem) -> None:
    with promises.that("a network starts the same whatever tasks are beside it"):
        first = problem.names[:1]
        beside, alone = (_state(build_network(one, first, 0)) for one in (problem, problem.only(first)))
        expect(_equal(beside, alone), f"first weights of a network for {first[0]!r} differ after `only`")
    with promises.that("networks train with finite losses"):
        for tasks in (problem.names, problem.names[-1:]):
            trained = train(problem, Job(tasks, 0, epochs=EPOCHS))
            wrong = [task for task in tasks if not np.isfinite(trained.val[task].loss + trained.test[task].loss)]
            expect(not wrong, f"after {EPOCHS} epochs the loss of {', '.join(wrong)} is not finite")
            expect(bool(np.isfinite(trained.curve).all()), "a validation loss on the way is not finite")
    with promises.that("the same seed trains the same network"):
        job = Job(problem.names, 0, epochs=1)
        one, two = (train(copy.copy(problem), job) for _ in range(2))
        expect(_equal(dict(one.state or {}), dict(two.state or {})), "weights differ after an epoch")


def _state(network: torch.nn.Module) -> dict[str, Tensor]:
    return dict(network.state_dict())


def _equal(mine: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> bool:
    return mine.keys() == theirs.keys() and all(
        tensor.shape == theirs[name].shape and torch.allclose(tensor, theirs[name], rtol=0, atol=0, equal_nan=True)
        for name, tensor in mine.items()
    )
