"""Figures of affinities and results, and the HTML report of a run."""

from .figures import BACKGROUND_COLOR as BACKGROUND_COLOR
from .figures import TEXT_COLOR as TEXT_COLOR
from .figures import affinity_heatmap as affinity_heatmap
from .figures import affinity_over_training as affinity_over_training
from .figures import figure_heading as figure_heading
from .figures import gain_by_models as gain_by_models
from .figures import line_style as line_style
from .figures import marker_style as marker_style
from .figures import plotly_text as plotly_text
from .figures import task_skills as task_skills
from .page import write_report as write_report
