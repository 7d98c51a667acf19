"""The paper's published numbers and reproductions of its experiments."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .experiment_report import Claim as Claim
    from .experiment_report import Report as Report
    from .experiment_report import ReportTable as ReportTable
    from .experiment_report import Value as Value
    from .experiment_setup import ExperimentSetup as ExperimentSetup
    from .experiment_setup import load_setup as load_setup
    from .experiments import EXPERIMENTS as EXPERIMENTS
    from .experiments import Experiment as Experiment
    from .experiments import run_experiment as run_experiment
    from .printed import CELEBA as CELEBA
    from .printed import MATRICES as MATRICES
    from .printed import PRINTED as PRINTED
    from .printed import TASKONOMY as TASKONOMY
    from .printed import PrintedGroup as PrintedGroup
    from .printed import PrintedGrouping as PrintedGrouping
    from .printed import PublishedMatrix as PublishedMatrix
    from .printed import published_matrices as published_matrices
    from .selection import Selection as Selection
    from .selection import selections as selections

_HOMES = {
    "ExperimentSetup": ".experiment_setup",
    "CELEBA": ".printed",
    "Claim": ".experiment_report",
    "EXPERIMENTS": ".experiments",
    "Experiment": ".experiments",
    "MATRICES": ".printed",
    "PRINTED": ".printed",
    "PrintedGrouping": ".printed",
    "PrintedGroup": ".printed",
    "PublishedMatrix": ".printed",
    "Report": ".experiment_report",
    "Selection": ".selection",
    "ReportTable": ".experiment_report",
    "TASKONOMY": ".printed",
    "Value": ".experiment_report",
    "load_setup": ".experiment_setup",
    "published_matrices": ".printed",
    "run_experiment": ".experiments",
    "selections": ".selection",
}


def __getattr__(name: str) -> Any:
    # Imported on demand, so that the command line can list experiments without loading solvers.
    if name in _HOMES:
        return getattr(import_module(_HOMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
