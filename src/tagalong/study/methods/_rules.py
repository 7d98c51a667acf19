"""Which rules that balance tasks there are, as the methods see them."""

from __future__ import annotations

from tagalong.learn import check_rule

RULES = ("uw", "gradnorm", "pcgrad")


def rule_problem(rule: str, tasks: int = 2) -> str | None:
    """Why this rule cannot be used with so many tasks; None if it can.

    Example:
        >>> rule_problem("pcgrad") is None, rule_problem("no such rule") is None
        (True, False)
    """
    try:
        check_rule(rule, tasks)
    except (ValueError, TypeError, ImportError) as error:
        return str(error)
    return None
