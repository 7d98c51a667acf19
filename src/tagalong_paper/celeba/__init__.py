"""CelebA (Liu et al. 2015), read from a local copy of the data."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .celeba_problem import celeba as celeba


def __getattr__(name: str) -> Any:
    # Imported on demand, since worker processes that decode images import this package but do not need torch.
    if name == "celeba":
        from .celeba_problem import celeba

        return celeba
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
