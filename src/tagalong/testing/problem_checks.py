"""Checks that a problem and its rows do what `tagalong.learn.Problem` and `Rows` specify."""

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

from .checks import Checks, display_name, expect, temporary_seed

MAX_TRAINED_ROWS = 256
MAX_COMPARED_ROWS = 5000  # per split
EPOCHS = 2
MAX_OVERLAP = 0.1  # maximum fraction of rows in two splits, in addition to the fraction of duplicates within one split


def check_problem(
    problem: str | Problem | Callable[..., Problem],
    *,
    ids: Mapping[str, Iterable[Any]] | None = None,
    **options: Any,
) -> None:
    """Loads a problem twice, trains on some of its rows, and checks the results.

    Tasks and data must be consistent, every task must have labels in every split, and no row may be in two splits.
    Batches must contain the requested rows, and the same rows for the same seed. Networks for all tasks and for one
    task must train reproducibly for two epochs, with finite losses. The fingerprint must be the same every time the
    problem is loaded, and must change with the data. It must be possible to pickle the problem, since it is sent to
    worker processes.

    Args:
        problem: a name known to `load_problem`, a function that creates the problem, or a problem. A function is better
            than a problem, since the problem is loaded twice.
        ids: row ids of "train", "val" and "test", to check that no row is in two splits. If None, rows in memory are
            compared by group if they have groups, otherwise by content. Rows read from files are not compared, since
            their groups are numbered separately in each split.
        **options: options for the problem.

    Raises:
        FailedChecks: If at least one check fails; the error message lists all failed checks.

    Example:
        >>> check_problem("faces", rows=300, pixels=8)
    """
    checks = Checks(f"problem {display_name(problem)!r}")
    loaded: list[Problem] = []
    for global_seed in (0, 1):
        with checks.check("it can be loaded"), temporary_seed(global_seed):
            loaded.append(_load_problem(problem, options))
    if len(loaded) == 2:
        with temporary_seed(2):
            _check_data(checks, loaded[0], ids)
            _check_identity(checks, *loaded)
            _check_rows(checks, loaded[0])
            with checks.check("networks can be built and trained"):
                _check_networks(checks, _sample_problem(loaded[0]))
    checks.raise_failures()


def _load_problem(problem: str | Problem | Callable[..., Problem], options: Mapping[str, Any]) -> Problem:
    if isinstance(problem, Problem):
        return replace(problem)  # a copy without cached properties
    found = load_problem(problem, **options) if isinstance(problem, str) else problem(**options)
    expect(isinstance(found, Problem), f"the loader must return a Problem, found {type(found).__name__}")
    return found


def _check_data(checks: Checks, problem: Problem, ids: Mapping[str, Iterable[Any]] | None) -> None:
    with checks.check("tasks and data agree"):
        problems: list[InvalidInput] = []
        collect(problems, check_data, problem)
        expect(not problems, "; ".join(map(str, problems)))
    with checks.check("every task has labels in every part"):
        for part, rows in problem.splits.items():
            unlabelled = [task for task in problem.names if not bool(rows.labelled(task).any())]
            expect(not unlabelled, f"`{part}` has no labels for {', '.join(unlabelled)}")
    with checks.check("no row is in two parts"):
        _check_disjoint(problem, ids)


def _check_disjoint(problem: Problem, ids: Mapping[str, Iterable[Any]] | None) -> None:
    in_memory = {part: rows for part, rows in problem.splits.items() if isinstance(rows, Split)}
    if ids is not None:
        known: dict[str, Iterable[Any]] = {part: ids[part] for part in problem.splits}
        what = "ids"
    else:
        known = {part: rows.groups.tolist() for part, rows in in_memory.items() if rows.groups is not None}
        what = "groups of rows"
    for a, b in combinations(known, 2):
        both = set(known[a]) & set(known[b])
        examples = ", ".join(map(repr, sorted(both, key=repr)[:3]))
        expect(not both, f"`{a}` and `{b}` have {len(both)} {what} in common, such as {examples}")
    if not known:
        _check_contents_disjoint(in_memory)


def _check_contents_disjoint(splits: Mapping[str, Split]) -> None:
    """Checks that equal rows are not much more frequent across two splits than within one split.

    With few distinct inputs, some rows are equal by chance.
    """
    digests = {part: _row_digests(rows) for part, rows in splits.items()}
    for a, b in combinations(digests, 2):
        duplicates = sum(times for times in Counter(digests[a]).values() if times > 1) / max(1, len(digests[a]))
        in_a = set(digests[a])
        shared = sum(digest in in_a for digest in digests[b]) / max(1, len(digests[b]))
        expect(shared <= duplicates + MAX_OVERLAP, f"{shared:.0%} of the rows of `{b}` are also in `{a}`")


def _row_digests(rows: Split) -> list[bytes]:
    number = min(len(rows), MAX_COMPARED_ROWS)
    inputs, targets = rows.batch(torch.arange(number))
    columns = [_flat_rows(inputs), *(_flat_rows(targets[task]) for task in sorted(targets))]
    return [hashlib.sha256(b"".join(row.tobytes() for row in parts)).digest() for parts in zip(*columns, strict=True)]


def _flat_rows(tensor: Tensor) -> Any:
    return np.ascontiguousarray(tensor.detach().cpu().numpy()).reshape(len(tensor), -1)


def _check_identity(checks: Checks, problem: Problem, reloaded: Problem) -> None:
    with checks.check("the fingerprint is the same every time it is loaded"):
        prints = problem.fingerprint, reloaded.fingerprint, replace(problem).fingerprint
        expect(
            len(set(prints)) == 1,
            f"found {' and '.join(dict.fromkeys(prints))}; seed its random generators",
        )
    with checks.check("the fingerprint changes with the data"):
        for part, rows in problem.splits.items():
            if isinstance(rows, Split):
                other = _with_splits(problem, {part: _with_another_label(rows, problem.names[0])})
                expect(other.fingerprint != problem.fingerprint, f"changing a label in `{part}` did not change it")
    with checks.check("it can be sent to a worker process (cloudpickle)"):
        import cloudpickle

        copied = cloudpickle.loads(cloudpickle.dumps(problem))
        expect(copied.fingerprint == problem.fingerprint, "the copy has a different fingerprint")
        first, second = (_network_state(build_network(one, one.names, 0)) for one in (problem, copied))
        expect(_all_equal(first, second), "networks of the copy have different initial weights")


def _with_splits(problem: Problem, changed: Mapping[str, Rows]) -> Problem:
    splits = {**problem.splits, **changed}
    return replace(problem, train=splits["train"], val=splits["val"], test=splits["test"])


def _with_another_label(rows: Split, task: str) -> Split:
    labels = rows.targets[task].clone()
    labels.view(-1)[int(labels.isfinite().view(-1).nonzero()[0])] += 1
    return replace(rows, targets={**rows.targets, task: labels})


def _check_rows(checks: Checks, problem: Problem) -> None:
    for part, rows in problem.splits.items():
        with checks.check(f"`{part}` returns the requested rows"):
            _check_batch(rows, problem.names)
    with checks.check("the same seed gives the same batches"):
        parts = list(torch.arange(min(len(problem.train), 8)).split(4))
        first, second = ([*problem.train.batches(parts, (0, 1))] for _ in range(2))
        expect(len(first) == len(parts), f"found {len(first)} batches, expected {len(parts)}")
        same = all(_all_equal(_flatten(a), _flatten(b)) for a, b in zip(first, second, strict=True))
        expect(same, "rows of seed 0 and epoch 1 differ when read again")
    with checks.check("`only` keeps all rows and drops the other tasks"):
        one = problem.only(problem.names[:1])
        expect(one.names == problem.names[:1], f"found the tasks {', '.join(one.names)}")
        for part, rows in one.splits.items():
            expect(tuple(rows.tasks) == one.names, f"`{part}` still has {', '.join(rows.tasks)}")
            expect(len(rows) == len(problem.splits[part]), f"`{part}` has a different number of rows")


def _check_batch(rows: Rows, names: Sequence[str]) -> None:
    last = len(rows) - 1
    inputs, targets = rows.batch(torch.tensor([last, 0]))
    expect(len(inputs) == 2, f"found {len(inputs)} rows, expected 2")
    missing = [name for name in names if name not in targets]
    expect(not missing, f"there are no targets for {', '.join(missing)}")
    for name in names:
        expect(targets[name].is_floating_point(), f"the target of {name!r} must be a floating-point tensor")
    single = rows.batch(torch.tensor([last]))
    first = {name: tensor[:1] for name, tensor in _flatten((inputs, targets)).items()}
    expect(_all_equal(first, _flatten(single)), "a row read alone differs from the same row in a batch")
    only = rows.only(names[:1]).to("cpu").batch(torch.tensor([last, 0]))
    expect(torch.equal(only[0], inputs) and set(only[1]) == {names[0]}, "`only` changed the rows")


def _flatten(batch: tuple[Tensor, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    inputs, targets = batch
    return {"inputs": inputs, **{f"target {name}": target for name, target in targets.items()}}


def _sample_problem(problem: Problem) -> Problem:
    """Returns an in-memory copy of the problem with a few rows of each split, including labels for every task."""
    splits = {part: _sample_rows(rows, problem.names) for part, rows in problem.splits.items()}
    recipe = replace(problem.recipe, batch_size=min(problem.recipe.batch_size, MAX_TRAINED_ROWS // 4), amp=None)
    return replace(_with_splits(problem, splits), recipe=recipe)


def _sample_rows(rows: Rows, names: Sequence[str]) -> Split:
    every = max(1, len(rows) // MAX_TRAINED_ROWS)
    labelled = [rows.labelled(name).nonzero().flatten()[:8] for name in names]
    chosen = torch.cat([torch.arange(0, len(rows), every), *labelled]).unique()
    inputs, targets = rows.batch(chosen)
    return Split(inputs.cpu(), {name: target.cpu() for name, target in targets.items()})


def _check_networks(checks: Checks, problem: Problem) -> None:
    with checks.check("initial weights do not depend on the other tasks of the problem"):
        first = problem.names[:1]
        among_all, alone = (_network_state(build_network(one, first, 0)) for one in (problem, problem.only(first)))
        expect(_all_equal(among_all, alone), f"initial weights of a network for {first[0]!r} differ after `only`")
    with checks.check("networks train with finite losses"):
        for tasks in (problem.names, problem.names[-1:]):
            trained = train(problem, Job(tasks, 0, epochs=EPOCHS))
            wrong = [task for task in tasks if not np.isfinite(trained.val[task].loss + trained.test[task].loss)]
            expect(not wrong, f"after {EPOCHS} epochs, the loss of {', '.join(wrong)} is not finite")
            expect(bool(np.isfinite(trained.curve).all()), "a validation loss during training is not finite")
    with checks.check("the same seed trains the same network"):
        job = Job(problem.names, 0, epochs=1)
        one, two = (train(copy.copy(problem), job) for _ in range(2))
        expect(_all_equal(dict(one.state or {}), dict(two.state or {})), "weights differ after one epoch")


def _network_state(network: torch.nn.Module) -> dict[str, Tensor]:
    return dict(network.state_dict())


def _all_equal(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(
        tensor.shape == second[name].shape and torch.allclose(tensor, second[name], rtol=0, atol=0, equal_nan=True)
        for name, tensor in first.items()
    )
