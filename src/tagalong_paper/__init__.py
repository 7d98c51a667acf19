"""The paper's published numbers and experiments, and what comes of them when they are computed and trained again."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bench import Bench as Bench
    from .bench import open_bench as open_bench
    from .experiments.registry import EXPERIMENTS as EXPERIMENTS
    from .experiments.registry import Experiment as Experiment
    from .experiments.registry import run_experiment as run_experiment
    from .groupings import PRINTED as PRINTED
    from .groupings import Printed as Printed
    from .groupings import PrintedGroup as PrintedGroup
    from .matrices import CELEBA as CELEBA
    from .matrices import MATRICES as MATRICES
    from .matrices import TASKONOMY as TASKONOMY
    from .matrices import Published as Published
    from .matrices import published as published
    from .plugins import register as register
    from .report import Claim as Claim
    from .report import Report as Report
    from .report import Sheet as Sheet
    from .report import Value as Value
    from .selection import Selection as Selection
    from .selection import selections as selections

_HOMES = {
    "Bench": ".bench",
    "CELEBA": ".matrices",
    "Claim": ".report",
    "EXPERIMENTS": ".experiments.registry",
    "Experiment": ".experiments.registry",
    "MATRICES": ".matrices",
    "PRINTED": ".groupings",
    "Printed": ".groupings",
    "PrintedGroup": ".groupings",
    "Published": ".matrices",
    "Report": ".report",
    "Selection": ".selection",
    "Sheet": ".report",
    "TASKONOMY": ".matrices",
    "Value": ".report",
    "open_bench": ".bench",
    "published": ".matrices",
    "register": ".plugins",
    "run_experiment": ".experiments.registry",
    "selections": ".selection",
}


def __getattr__(name: str) -> Any:
    # On demand: the command line lists experiments without waiting for solvers.
    if name in _HOMES:
        return getattr(import_module(_HOMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
