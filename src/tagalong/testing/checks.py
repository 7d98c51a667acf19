"""Collects the failed checks of an object and reports all of them in a single error."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch


class FailedChecks(AssertionError):
    """Raised if an object fails one or more checks.

    Attributes:
        failures: one sentence per failed check.
    """

    def __init__(self, subject: str, failures: tuple[str, ...]) -> None:
        number = "a check" if len(failures) == 1 else f"{len(failures)} checks"
        super().__init__("\n".join([f"{subject} fails {number}:", *(f"- {sentence}" for sentence in failures)]))
        self.failures = failures


class Checks:
    """Collects the failed checks of one object.

    Args:
        subject: the name of the object in the error message.
    """

    def __init__(self, subject: str) -> None:
        self._subject = subject
        self._failures: dict[str, list[str]] = {}

    @contextmanager
    def check(self, requirement: str) -> Iterator[None]:
        """Records a failure if the block raises an exception, and continues after the block either way."""
        try:
            yield
        except AssertionError as error:
            self._failures.setdefault(requirement, []).append(str(error))
        except Exception as error:  # user code may raise any error; it becomes part of the report
            self._failures.setdefault(requirement, []).append(f"raised {type(error).__name__}: {error}")

    def raise_failures(self) -> None:
        """Raises a single error for all failed checks, if there are any.

        Raises:
            FailedChecks: If at least one check fails; the error message lists each failed check with its first failure.
        """
        if self._failures:
            raise FailedChecks(self._subject, tuple(_format_failure(*failure) for failure in self._failures.items()))


def _format_failure(requirement: str, failures: Sequence[str]) -> str:
    more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
    return f"{requirement}: {failures[0]}{more}"


def display_name(extension: object) -> str:
    """Returns the name of an extension for use in messages: the string itself, its `name`, or its `__name__`."""
    if isinstance(extension, str):
        return extension
    return str(getattr(extension, "name", None) or getattr(extension, "__name__", None) or extension)


def expect(condition: bool, message: str) -> None:
    """Raises an AssertionError with this message if the condition is false, even under `python -O`."""
    if not condition:
        raise AssertionError(message)


@contextmanager
def temporary_seed(seed: int) -> Iterator[None]:
    """Seeds all global random number generators inside the block, and restores their state afterward.

    The block runs on a single thread, so that floating-point sums are computed in a fixed order.
    """
    python, legacy, threads = random.getstate(), np.random.get_state(), torch.get_num_threads()  # noqa: NPY002
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - user code may draw from it
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            np.random.set_state(legacy)  # noqa: NPY002
            random.setstate(python)
