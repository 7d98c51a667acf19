"""Solvers that find the best networks for a problem, with a bound or a proof of optimality.

`choice` picks a solver: `dynamic_programming` ("exact"), `compact` ("milp", an integer program for HiGHS) or
`local_search` ("search"). They share `served_sets` (the best network for each served set) and `ties`.
"""

from .choice import choose_solver as choose_solver
from .dynamic_programming import MAX_LISTED as MAX_LISTED
from .dynamic_programming import MAX_PAIRWISE as MAX_PAIRWISE
from .local_search import solve_search as solve_search
from .served_sets import all_networks as all_networks
from .served_sets import best_split as best_split
from .served_sets import listed_values as listed_values
from .served_sets import served_values as served_values
from .ties import MAX_TIES as MAX_TIES
