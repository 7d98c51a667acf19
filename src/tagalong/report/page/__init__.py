"""The page of a run: one self-contained HTML file."""

from .document import write_report as write_report
