"""The search behind `auto`, which decides which networks to train next and which to recommend."""

from .recommendation import Recommendation as Recommendation
from .recommendation import SearchSettings as SearchSettings
from .search import Round as Round
from .search import SearchResult as SearchResult
from .search import search as search
from .spending import SpendingSettings as SpendingSettings
from .spending import spend as spend
from .spending_result import Plan as Plan
from .spending_result import Spending as Spending
from .spending_result import SpendingRound as SpendingRound
from .trial import Trial as Trial
from .trial import mean_half_loss as mean_half_loss
