"""Who helps whom, and how surely: the record that measuring fills and grouping reads."""

from .affinity import Affinity as Affinity
from .display import named_values as named_values
from .fields import AffinityFileError as AffinityFileError
from .formats import DECIMALS as DECIMALS
from .formats import Line as Line
from .formats import cells as cells
from .formats import square as square
from .reliability import Settled as Settled
from .reliability import Spread as Spread
