"""Taskonomy (Zamir et al. 2018) as in the paper, read from a local copy of the data."""

from .taskonomy_network import Decoders as Decoders, Xception as Xception
from .taskonomy_problem import TASKONOMY_RECIPE as TASKONOMY_RECIPE, taskonomy as taskonomy
