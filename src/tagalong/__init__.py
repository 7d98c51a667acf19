"""Which tasks should train together?

The names below are the public surface; each room (`affinity`, `measure`, `group`, `learn`, `study`, `problems`,
`report`, `integrations`, `testing`) offers more, and so does the command line, `tagalong --help`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import __version__ as __version__
from .affinity import Affinity as Affinity

if TYPE_CHECKING:
    from .group import Group as Group
    from .group import Grouping as Grouping
    from .group import select_groups as select_groups
    from .learn import Problem as Problem
    from .learn import Task as Task
    from .measure import AffinityMeter as AffinityMeter
    from .study import Results as Results
    from .study import Study as Study

_ROOMS = {
    "AffinityMeter": "measure",
    "Group": "group",
    "Grouping": "group",
    "Problem": "learn",
    "Results": "study",
    "Study": "study",
    "Task": "learn",
    "select_groups": "group",
}
__all__ = [
    "Affinity",
    "AffinityMeter",
    "Group",
    "Grouping",
    "Problem",
    "Results",
    "Study",
    "Task",
    "__version__",
    "select_groups",
]


def __getattr__(name: str) -> Any:
    # On demand: whoever only reads affinities need not wait for torch, nor for scipy.
    if name in _ROOMS:
        return getattr(import_module(f".{_ROOMS[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
