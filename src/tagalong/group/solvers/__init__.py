"""Solvers that find the best networks for a problem, with a bound or a proof of optimality.

`choice` picks a solver: `dynamic` ("exact"), `partition` ("lp"), `columns`, `compact` ("milp") or `local_search`
("search"). The solvers share `served_sets` (the best network for each served set), `linear_programs` (solved by HiGHS)
and `ties`. `certificate` verifies proofs and does not depend on the solvers.
"""

from .certificate import Certificate as Certificate
from .certificate import check_certificate as check_certificate
from .choice import choose_solver as choose_solver
from .dynamic_programming import MAX_LISTED as MAX_LISTED
from .dynamic_programming import MAX_PAIRWISE as MAX_PAIRWISE
from .local_search import solve_search as solve_search
from .served_sets import all_networks as all_networks
from .served_sets import best_split as best_split
from .served_sets import listed_values as listed_values
from .served_sets import served_values as served_values
from .ties import MAX_TIES as MAX_TIES
