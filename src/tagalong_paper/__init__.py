"""The paper's published numbers and reproductions of its experiments."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .experiment_setup import ExperimentSetup as ExperimentSetup, load_setup as load_setup
    from .experiments import EXPERIMENTS as EXPERIMENTS, run_experiment as run_experiment
    from .experiments.selection import selections as selections
    from .printed import (
        CELEBA as CELEBA,
        MATRICES as MATRICES,
        PRINTED as PRINTED,
        TASKONOMY as TASKONOMY,
        PrintedGrouping as PrintedGrouping,
        PublishedMatrix as PublishedMatrix,
    )
    from .report import Report as Report, ReportTable as ReportTable, Value as Value

_HOMES = {
    "ExperimentSetup": ".experiment_setup",
    "CELEBA": ".printed",
    "EXPERIMENTS": ".experiments",
    "MATRICES": ".printed",
    "PRINTED": ".printed",
    "PrintedGrouping": ".printed",
    "PublishedMatrix": ".printed",
    "Report": ".report",
    "ReportTable": ".report",
    "TASKONOMY": ".printed",
    "Value": ".report",
    "load_setup": ".experiment_setup",
    "run_experiment": ".experiments",
    "selections": ".experiments.selection",
}


def __getattr__(name: str) -> Any:
    # Imported on demand, so that the command line can list experiments without loading solvers.
    if name in _HOMES:
        return getattr(import_module(_HOMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
