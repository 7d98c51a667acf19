"""The page of a run: one HTML file that can be mailed."""

from tagalong.files import write_atomic as write_atomic
from tagalong.study.finished_run import Run as Run
from tagalong.study.finished_run import read_run as read_run
