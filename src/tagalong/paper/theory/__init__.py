"""The paper's theory, tested: its lemma, its proposition in each printed version, and what holds instead."""

from ._bounds import BOUNDS as BOUNDS
from ._bounds import Bound as Bound
from ._example import COUNTEREXAMPLE as COUNTEREXAMPLE
from ._example import PANELS as PANELS
from ._example import Panel as Panel
from ._example import after_steps as after_steps
from ._losses import Case as Case
from ._losses import Cases as Cases
from ._losses import logistic_cases as logistic_cases
from ._losses import quadratic_cases as quadratic_cases
from ._search import Search as Search
from ._search import lemma_gap as lemma_gap
from ._search import search_lemma as search_lemma
from ._search import search_margin as search_margin
from ._search import search_proposition as search_proposition
