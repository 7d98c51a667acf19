"""Promises that an object keeps or breaks, collected; and the small problems they are tried on."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from tagalong.learn import MLP, Problem, Recipe, Split, Task


class BrokenPromises(AssertionError):
    """An object does not do what its kind promises.

    Attributes:
        broken: one sentence per broken promise.
    """

    def __init__(self, what: str, broken: tuple[str, ...]) -> None:
        number = "a promise" if len(broken) == 1 else f"{len(broken)} promises"
        super().__init__("\n".join([f"{what} breaks {number}:", *(f"- {sentence}" for sentence in broken)]))
        self.broken = broken


class Promises:
    """What was found of one object so far.

    Args:
        what: how the report calls the object.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._broken: dict[str, list[str]] = {}

    @contextmanager
    def that(self, promise: str) -> Iterator[None]:
        """Notes the promise as broken if the block raises; what comes after the block runs in any case."""
        try:
            yield
        except AssertionError as error:
            self._broken.setdefault(promise, []).append(str(error))
        except Exception as error:  # whatever a stranger's code raises is part of the report
            self._broken.setdefault(promise, []).append(f"raised {type(error).__name__}: {error}")

    def settle(self) -> None:
        """Raises if any promise was broken.

        Raises:
            BrokenPromises: it lists all of them, each with the first way in which it was broken.
        """
        if self._broken:
            raise BrokenPromises(self._what, tuple(_sentence(promise, how) for promise, how in self._broken.items()))


def _sentence(promise: str, how: Sequence[str]) -> str:
    more = f" (and {len(how) - 1} more)" if len(how) > 1 else ""
    return f"{promise}: {how[0]}{more}"


def name_of(extension: object) -> str:
    """What a report calls the object that is checked: the name it is given by, its own, or that of its function."""
    if isinstance(extension, str):
        return extension
    return str(getattr(extension, "name", None) or getattr(extension, "__name__", None) or extension)


def expect(kept: bool, sentence: str) -> None:
    """Raises where the promise is not kept."""
    if not kept:
        raise AssertionError(sentence)


@contextmanager
def reseeded(seed: int) -> Iterator[None]:
    """Other global random numbers inside; outside nothing has been drawn. One thread, so that sums keep their order."""
    python, legacy, threads = random.getstate(), np.random.get_state(), torch.get_num_threads()  # noqa: NPY002
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - a stranger's code may draw from it
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            np.random.set_state(legacy)  # noqa: NPY002
            random.setstate(python)


FEATURES, CLASSES, MISSING = 4, 3, 0.15
ROWS = (48, 32, 32)  # to train, validate and test
RECIPE = Recipe(optimizer="sgd", lr=0.05, batch_size=16, epochs=2, patience=2, weight_decay=0.0)
KINDS = ("regression", "binary", "multiclass")


def small_problem(names: Sequence[str], order: Sequence[int] | None = None, *, test_seed: int = 2) -> Problem:
    """Tasks of mixed kinds in float64, some labels missing; the data of a task depend on its place in `names` alone.

    Args:
        names: of the tasks.
        order: in which the problem lists them.
        test_seed: of the test rows; others leave training and validation rows as they are.
    """
    tasks = [_task(name, number) for number, name in enumerate(names)]
    train, val, test = (_split(names, rows, seed) for rows, seed in zip(ROWS, (0, 1, test_seed), strict=True))
    chosen = tuple(tasks[number] for number in (range(len(names)) if order is None else order))
    return Problem("small", chosen, train, val, test, encoder=MLP(FEATURES, hidden=(6,)), recipe=RECIPE)


def _task(name: str, number: int) -> Task:
    kind = KINDS[number % len(KINDS)]
    if kind == "multiclass":
        return Task(name, kind="multiclass", classes=CLASSES)
    return Task(name, kind="binary") if kind == "binary" else Task(name, kind="regression")


def _split(names: Sequence[str], rows: int, seed: int) -> Split:
    inputs = _normal(rows, FEATURES, seed=seed)
    return Split(inputs, {name: _labels(inputs, number, seed) for number, name in enumerate(names)})


def _labels(inputs: Tensor, number: int, seed: int) -> Tensor:
    """Linear in the inputs with noise, cut into classes for the kinds that have them."""
    direction = _normal(FEATURES, 1, seed=1000 + number)
    # Test rows other than the usual ones follow another rule, so that whoever looks at them decides otherwise.
    rule = direction if seed <= 2 else _normal(FEATURES, 1, seed=100 * seed + number)
    noisy = (inputs @ rule + 0.7 * _normal(len(inputs), 1, seed=5000 + 10 * number + seed)).squeeze(1)
    kind = KINDS[number % len(KINDS)]
    if kind == "binary":
        noisy = (noisy > 0).double()
    if kind == "multiclass":
        noisy = (noisy > -0.6).double() + (noisy > 0.6).double()
    absent = torch.rand(len(inputs), generator=_generator(9000 + 10 * number + seed)) < MISSING
    return torch.where(absent, torch.nan, noisy)


def _normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=_generator(seed), dtype=torch.float64)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
