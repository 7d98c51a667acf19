"""Figures of affinities, groupings and results, and the HTML report of a run."""

from .affinity_history import affinity_over_training as affinity_over_training
from .grouping_figure import grouping_figure as grouping_figure
from .heatmap import affinity_heatmap as affinity_heatmap
from .page import write_report as write_report
from .result_figures import change_by_networks as change_by_networks
from .result_figures import cost_against_error as cost_against_error
from .result_figures import search_curve as search_curve
from .result_figures import task_changes as task_changes
from .style import BACKGROUND_COLOR as BACKGROUND_COLOR
from .style import TEXT_COLOR as TEXT_COLOR
from .style import figure_heading as figure_heading
from .style import line_style as line_style
from .style import marker_style as marker_style
from .style import plotly_text as plotly_text
