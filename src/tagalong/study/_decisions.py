"""Every method decides, in one order; what they decided and measured goes to files."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tagalong._caution import caution
from tagalong.affinity._atomic import write_atomic
from tagalong.group._grouping_file import to_document
from tagalong.learn import Diverged

from ._asked import Asked
from ._lab import Lab
from ._records import Decisions
from .methods import Choice, Combined, Decision, Method

logger = logging.getLogger(__name__)


def decide_all(lab: Lab, asked: Asked) -> Decisions:
    """In one order whatever was asked for, so that the same networks are trained side by side; given as asked.

    A method that cannot decide, since a network that it needs diverged, chooses nothing.
    """
    made = {}
    for method in sorted(asked.methods, key=lambda method: (method.order, method.name)):
        logger.info("%s decides", method.name)
        try:
            decision = method.decide(lab, asked.budgets, asked.seeds)
        except Diverged as error:
            logger.warning("%s cannot decide: %s", method.name, error)
            decision = Decision({(k, s): Choice(()) for k in _budgets(method, asked) for s in asked.seeds})
        made[method.name] = method, decision
    return {method.name: made[method.name] for method in asked.methods}


def _budgets(method: Method, asked: Asked) -> tuple[int | None, ...]:
    return asked.budgets if method.budgeted else (None,)


def choices_again(decisions: Decisions, *labels: tuple[str, int | None], seeds: Sequence[int]) -> Decisions:
    """The same choices of some methods and budgets for other seeds."""
    again = {}
    for name, budget in labels:
        method, decision = decisions[name]
        (_, first), choice = next((at, choice) for at, choice in decision.choices.items() if at[0] == budget)
        deciding = {seed: decision.deciding[first] for seed in seeds if first in decision.deciding}
        again[name] = method, Decision({(budget, seed): choice for seed in seeds}, deciding)
    return again


def write_decisions(out: Path, decisions: Decisions, tasks: Sequence[str]) -> None:
    """`groupings.json`, and `affinity.json` of `tag`; `affinity-<method>.json` of others that measured."""
    measured = {
        name: decision.affinity
        for name, (method, decision) in decisions.items()
        if decision.affinity is not None and not isinstance(method, Combined)
    }
    main = "tag" if "tag" in measured else next(iter(measured), None)
    for name, affinity in measured.items():
        affinity.save(out / ("affinity.json" if name == main else f"affinity-{name}.json"))
    found = [
        {"method": name, "budget": budget} | _document(choice)
        for name, (_, decision) in decisions.items()
        for budget, choice in {budget: choice for (budget, _), choice in decision.choices.items()}.items()
        if choice.shares is None and choice.groups
    ]
    document = {"format": "tagalong-groupings", "version": 1, "caution": caution(tasks), "groupings": found}
    write_atomic(out / "groupings.json", (json.dumps(document, indent=1) + "\n").encode())


def _document(choice: Choice) -> dict[str, Any]:
    return {
        "groups": [{"trains": sorted(group.trains), "serves": sorted(group.serves)} for group in choice.groups],
        "grouping": None if choice.grouping is None else to_document(choice.grouping),
    }
