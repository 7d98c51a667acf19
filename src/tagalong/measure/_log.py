"""Where measured values are told as they come: anything with `log(metrics, step)`."""

from collections.abc import Callable
from typing import Any, Protocol

Log = Callable[[dict[str, float], int], Any]


class Logger(Protocol):
    """Anything with `log(metrics, step)`, such as a run of wandb."""

    def log(self, data: dict[str, float], step: int) -> Any: ...


def as_log(log: Log | Logger | None) -> Log | None:
    """The function to call; None if there is none.

    Example:
        >>> as_log(lambda metrics, step: print(step, metrics))({"loss": 1.0}, 3)
        3 {'loss': 1.0}
    """
    found = getattr(log, "log", log)
    if found is not None and not callable(found):
        raise TypeError(
            f"`log` must be a function of metrics and step, or have such a method `log`, got {type(log).__name__}."
        )
    return found
