"""Which tasks should train together?

The names below are the public surface; each room (`affinity`, `measure`, `group`, `report`, `paper`) offers more, and
so does the command line, `tagalong --help`.
"""

from typing import TYPE_CHECKING, Any

from ._version import __version__ as __version__
from .affinity import Affinity as Affinity

if TYPE_CHECKING:
    from .group import Group as Group
    from .group import Grouping as Grouping
    from .group import select_groups as select_groups
    from .measure import AffinityMeter as AffinityMeter

__all__ = ["Affinity", "AffinityMeter", "Group", "Grouping", "__version__", "select_groups"]


def __getattr__(name: str) -> Any:
    # On demand: whoever only reads affinities need not wait for torch, nor for scipy.
    if name == "AffinityMeter":
        from .measure import AffinityMeter

        return AffinityMeter
    if name in ("Group", "Grouping", "select_groups"):
        from . import group

        return getattr(group, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
