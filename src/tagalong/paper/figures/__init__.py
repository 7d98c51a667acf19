"""The paper's figures as functions of plain numbers."""

from ._bars import bars as bars
from ._lines import lines as lines
from ._panels import panels as panels
from ._points import Point as Point
from ._points import error_against_cost as error_against_cost
from ._quadratic import counterexample as counterexample
