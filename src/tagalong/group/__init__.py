"""Selects the networks to train (`select_groups`), and defines the inputs and outputs of the selection."""

from .grouping import (
    MAX_TIES as MAX_TIES,
    Group as Group,
    Grouping as Grouping,
    GroupingsByBudget as GroupingsByBudget,
    Stability as Stability,
    Taught as Taught,
)
from .scores import Candidate as Candidate
from .select import score_grouping as score_grouping, select_groups as select_groups
from .stability import GroupEvidence as GroupEvidence, group_evidence as group_evidence
