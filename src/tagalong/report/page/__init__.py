"""The page of a run: one HTML file that can be mailed."""

from .document import write_report as write_report
