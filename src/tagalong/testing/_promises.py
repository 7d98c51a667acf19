"""Collects the broken promises of one object, so that all of them are reported at once."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch


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
