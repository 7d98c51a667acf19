"""Which networks to train next, and which to recommend: a search that asks an oracle, whoever that is."""

from ._choose import Chosen as Chosen
from ._oracle import Oracle as Oracle
from ._oracle import Seen as Seen
from ._oracle import Trial as Trial
from ._search import Outcome as Outcome
from ._search import Step as Step
from ._search import search as search
from ._settings import Settings as Settings
