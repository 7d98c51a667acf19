"""The paper's published numbers and experiments, and what comes of them when they are computed and trained again."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._experiments import EXPERIMENTS as EXPERIMENTS
from ._experiments import Experiment as Experiment
from ._experiments import run_experiment as run_experiment
from ._matrices import CELEBA as CELEBA
from ._matrices import MATRICES as MATRICES
from ._matrices import TASKONOMY as TASKONOMY
from ._plugins import register as register
from ._printed import PRINTED as PRINTED
from ._printed import Printed as Printed
from ._printed import PrintedGroup as PrintedGroup
from ._published import Published as Published
from ._published import published as published

if TYPE_CHECKING:
    from ._bench import Bench as Bench
    from ._open import open_bench as open_bench
    from ._report import Claim as Claim
    from ._report import Report as Report
    from ._report import Sheet as Sheet
    from ._report import Value as Value
    from ._selection import Selection as Selection
    from ._selection import selections as selections

_ON_DEMAND = {
    "Bench": "_bench",
    "Claim": "_report",
    "Report": "_report",
    "Selection": "_selection",
    "Sheet": "_report",
    "Value": "_report",
    "open_bench": "_open",
    "selections": "_selection",
}


def __getattr__(name: str) -> Any:
    # The command line lists experiments without waiting for solvers.
    if name in _ON_DEMAND:
        return getattr(import_module(f".{_ON_DEMAND[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
