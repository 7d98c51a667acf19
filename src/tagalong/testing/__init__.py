"""Does an extension keep the promises of its kind? Checks to run on your own method, estimator, problem or executor."""

from ._estimator import check_estimator as check_estimator
from ._executor import check_executor as check_executor
from ._method import check_method as check_method
from ._problem import check_problem as check_problem
from ._promises import BrokenPromises as BrokenPromises
