"""The paper's experiments. Each module has a function `run` that returns a `Report`."""

from .experiment_registry import EXPERIMENTS as EXPERIMENTS
from .experiment_registry import Experiment as Experiment
from .experiment_registry import check_methods as check_methods
from .experiment_registry import run_experiment as run_experiment
