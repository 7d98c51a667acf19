"""How do people see it? Functions that take results and return figures, and the page of a run."""

from .grouping_figure import grouping_figure as grouping_figure
from .heatmap import affinity_heatmap as affinity_heatmap
from .over_training import affinity_over_training as affinity_over_training
from .page.document import write_report as write_report
from .result_figures import cost_against_error as cost_against_error
from .result_figures import search_curve as search_curve
from .result_figures import task_changes as task_changes
from .style import BLANK as BLANK
from .style import INK as INK
from .style import heading as heading
from .style import line_style as line_style
from .style import literal as literal
from .style import marker_style as marker_style
