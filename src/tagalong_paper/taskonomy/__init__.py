"""Taskonomy (Zamir et al. 2018) as in the paper, read from the user's own copy of the data."""

from .network import Decoders as Decoders
from .network import Xception as Xception
from .problem import TASKONOMY_RECIPE as TASKONOMY_RECIPE
from .problem import taskonomy as taskonomy
