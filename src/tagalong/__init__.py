"""Which tasks should train together?

The most commonly used names are exported here. The packages `affinity`, `measure`, `group`, `learn`, `study`,
`problems`, `report` and `integrations` provide more. For the command line, see `tagalong --help`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import __version__ as __version__
from .affinity import Affinity as Affinity

if TYPE_CHECKING:
    from .group import (
        Group as Group,
        Grouping as Grouping,
        GroupingsByBudget as GroupingsByBudget,
        select_groups as select_groups,
    )
    from .learn import MLP as MLP, Problem as Problem, Recipe as Recipe, Task as Task
    from .measure import AffinityMeter as AffinityMeter
    from .study import ExternalStudy as ExternalStudy, Results as Results, Study as Study, Verdict as Verdict
    from .versions import show_versions as show_versions

_MODULES = {
    "AffinityMeter": "measure",
    "ExternalStudy": "study",
    "Group": "group",
    "Grouping": "group",
    "GroupingsByBudget": "group",
    "MLP": "learn",
    "Problem": "learn",
    "Recipe": "learn",
    "Results": "study",
    "Study": "study",
    "Task": "learn",
    "Verdict": "study",
    "select_groups": "group",
    "show_versions": "versions",
}
__all__ = [
    "MLP",
    "Affinity",
    "AffinityMeter",
    "ExternalStudy",
    "Group",
    "Grouping",
    "GroupingsByBudget",
    "Problem",
    "Recipe",
    "Results",
    "Study",
    "Task",
    "Verdict",
    "__version__",
    "select_groups",
    "show_versions",
]


def __getattr__(name: str) -> Any:
    # Imported on demand, so that reading affinities does not have to wait for torch or scipy.
    if name in _MODULES:
        return getattr(import_module(f".{_MODULES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
