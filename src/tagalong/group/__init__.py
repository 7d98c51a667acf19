"""Selects the networks to train (`select_groups`), and defines the inputs and outputs of the selection."""

from tagalong.tabular import TableError as TableError

from .by_budget import GroupingsByBudget as GroupingsByBudget
from .evidence import GroupEvidence as GroupEvidence
from .evidence import group_evidence as group_evidence
from .given_groups import score_grouping as score_grouping
from .grouping import Group as Group
from .grouping import Grouping as Grouping
from .grouping import NetworkScore as NetworkScore
from .score_files import ScoreTable as ScoreTable
from .score_files import read_costs as read_costs
from .score_files import read_table as read_table
from .scores import Candidate as Candidate
from .select import select_groups as select_groups
from .solvers import MAX_TIES as MAX_TIES
from .stability import Stability as Stability
from .taught import Taught as Taught
