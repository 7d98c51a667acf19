"""Figures of affinities and results, and the HTML report of a run."""

from .figures import (
    BACKGROUND_COLOR as BACKGROUND_COLOR,
    TEXT_COLOR as TEXT_COLOR,
    affinity_heatmap as affinity_heatmap,
    affinity_over_training as affinity_over_training,
    figure_heading as figure_heading,
    gain_by_models as gain_by_models,
    line_style as line_style,
    marker_style as marker_style,
    plotly_text as plotly_text,
    task_skills as task_skills,
)
from .page import write_report as write_report
