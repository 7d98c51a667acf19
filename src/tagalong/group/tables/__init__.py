"""Scores as files: square tables, affinities and results of groups, told apart by what they hold."""

from ._content import TableError as TableError
from ._content import read_text as read_text
from ._costs import read_costs as read_costs
from ._read import read_table as read_table
from ._table import ScoreTable as ScoreTable
