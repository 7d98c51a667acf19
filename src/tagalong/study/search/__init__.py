"""Which networks to train next, and which to recommend: the search behind `auto`, on any backend."""

from .recommendation import Chosen as Chosen
from .recommendation import SearchSettings as SearchSettings
from .search import SearchResult as SearchResult
from .search import Step as Step
from .search import search as search
from .trial import Trial as Trial
from .trial import mean_half_loss as mean_half_loss
