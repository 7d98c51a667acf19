"""Which networks to train next, and which to recommend: a search that asks an oracle, whoever that is."""

from .choice import Chosen as Chosen
from .choice import Settings as Settings
from .oracle import Oracle as Oracle
from .oracle import Seen as Seen
from .oracle import Trial as Trial
from .search import SearchResult as SearchResult
from .search import Step as Step
from .search import search as search
