"""Does an extension keep the promises of its kind? Checks to run on your own method, estimator, problem or executor."""

from .estimator_checks import check_estimator as check_estimator
from .executor_checks import check_executor as check_executor
from .method_checks import check_method as check_method
from .problem_checks import check_problem as check_problem
from .promises import BrokenPromises as BrokenPromises
