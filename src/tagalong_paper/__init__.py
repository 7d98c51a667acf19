"""The paper's published numbers and experiments, and what comes of them when they are computed and trained again."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bench import Bench as Bench
    from .bench import open_bench as open_bench
    from .experiments import EXPERIMENTS as EXPERIMENTS
    from .experiments import Experiment as Experiment
    from .experiments import run_experiment as run_experiment
    from .plugins import register as register
    from .printed import CELEBA as CELEBA
    from .printed import MATRICES as MATRICES
    from .printed import PRINTED as PRINTED
    from .printed import TASKONOMY as TASKONOMY
    from .printed import Printed as Printed
    from .printed import PrintedGroup as PrintedGroup
    from .printed import Published as Published
    from .printed import published as published
    from .report import Claim as Claim
    from .report import Report as Report
    from .report import Sheet as Sheet
    from .report import Value as Value
    from .selection import Selection as Selection
    from .selection import selections as selections

_HOMES = {
    "Bench": ".bench",
    "CELEBA": ".printed",
    "Claim": ".report",
    "EXPERIMENTS": ".experiments",
    "Experiment": ".experiments",
    "MATRICES": ".printed",
    "PRINTED": ".printed",
    "Printed": ".printed",
    "PrintedGroup": ".printed",
    "Published": ".printed",
    "Report": ".report",
    "Selection": ".selection",
    "Sheet": ".report",
    "TASKONOMY": ".printed",
    "Value": ".report",
    "open_bench": ".bench",
    "published": ".printed",
    "register": ".plugins",
    "run_experiment": ".experiments",
    "selections": ".selection",
}


def __getattr__(name: str) -> Any:
    # On demand: the command line lists experiments without waiting for solvers.
    if name in _HOMES:
        return getattr(import_module(_HOMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
