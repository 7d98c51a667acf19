"""Which tasks should train together?

The names below are the public surface; each room (`affinity`, `measure`, `report`) offers more.
"""

from typing import TYPE_CHECKING, Any

from ._version import __version__ as __version__
from .affinity import Affinity as Affinity

if TYPE_CHECKING:
    from .measure import AffinityMeter as AffinityMeter

__all__ = ["Affinity", "AffinityMeter", "__version__"]


def __getattr__(name: str) -> Any:
    # On demand: whoever only reads or groups affinities need not wait for torch.
    if name == "AffinityMeter":
        from .measure import AffinityMeter

        return AffinityMeter
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
