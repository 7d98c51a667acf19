"""Affinities: how much each task helps the others, with error bars.

They are produced by `tagalong.measure` and used by `tagalong.group`.
"""

from .affinity import CAUTION as CAUTION, Affinity as Affinity
from .io import square_matrix as square_matrix
from .reliability import Settled as Settled, Spread as Spread
