"""Selects the networks to train (`select_groups`), and defines the inputs and outputs of the selection."""

from .grouping import MAX_TIES as MAX_TIES
from .grouping import Group as Group
from .grouping import Grouping as Grouping
from .grouping import GroupingsByBudget as GroupingsByBudget
from .grouping import Stability as Stability
from .grouping import Taught as Taught
from .scores import Candidate as Candidate
from .select import score_grouping as score_grouping
from .select import select_groups as select_groups
from .stability import GroupEvidence as GroupEvidence
from .stability import group_evidence as group_evidence
