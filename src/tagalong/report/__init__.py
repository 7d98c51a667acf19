"""How do people see it? Functions that take results and return figures, and the page of a run."""

from ._cost_against_error import cost_against_error as cost_against_error
from ._grouping_figure import grouping_figure as grouping_figure
from ._heatmap import affinity_heatmap as affinity_heatmap
from ._over_training import affinity_over_training as affinity_over_training
from ._search_curve import search_curve as search_curve
from ._task_changes import task_changes as task_changes
from .page import write_report as write_report
