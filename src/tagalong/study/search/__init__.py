"""The search behind `auto`, which decides which networks to train next and which to recommend."""

from .recommendation import Recommendation as Recommendation, SearchSettings as SearchSettings
from .search import Round as Round, SearchResult as SearchResult, search as search
from .spending import SpendingSettings as SpendingSettings, spend as spend
from .spending_result import Plan as Plan, Spending as Spending, SpendingRound as SpendingRound
from .trial import Trial as Trial, mean_half_loss as mean_half_loss
