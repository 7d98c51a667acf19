"""Who helps whom, and how surely: the record that measuring fills and grouping reads."""

from ._affinity import Affinity as Affinity
from ._check import AffinityFileError as AffinityFileError
from ._settled import Settled as Settled
from ._spread import Spread as Spread
