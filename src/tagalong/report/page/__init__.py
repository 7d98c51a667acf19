"""The report of a run: a single self-contained HTML page."""

from .document import write_report as write_report
