"""Checks that a custom method, estimator, problem or executor behaves as the rest of the library expects."""

from .checks import FailedChecks as FailedChecks
from .estimator_checks import check_estimator as check_estimator
from .executor_checks import check_executor as check_executor
from .method_checks import check_method as check_method
from .problem_checks import check_problem as check_problem
