"""The search behind `auto`, which decides which networks to train next and which to recommend."""

from .answers import (
    ALL as ALL,
    FIRST as FIRST,
    SECOND as SECOND,
    Answers as Answers,
    Array as Array,
    Members as Members,
)
from .committee import (
    best_set as best_set,
    cross_fitted_rows as cross_fitted_rows,
    select_committee as select_committee,
)
from .groups import GroupSearch as GroupSearch, search_groups as search_groups
from .proposals import Trial as Trial
from .spending import Member as Member, Plan as Plan, Spending as Spending, spend as spend
from .yardstick import Yardstick as Yardstick, read_answers as read_answers, set_yardstick as set_yardstick
