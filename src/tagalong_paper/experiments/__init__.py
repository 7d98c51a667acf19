"""The experiments: one module each, with a function `run` that returns a `Report`."""

from .registry import EXPERIMENTS as EXPERIMENTS
from .registry import Experiment as Experiment
from .registry import check_methods as check_methods
from .registry import run_experiment as run_experiment
