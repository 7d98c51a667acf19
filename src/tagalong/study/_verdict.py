"""The answer of a study: is any grouping worth it, how surely, and which networks to use."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from tagalong.group import Group

from ._change import Label
from ._interval import CONFIDENCE


@dataclass(frozen=True)
class Verdict:
    """Whether to group, and what is known about it.

    Attributes:
        worth_it: whether the grouping beats one network on test rows by more than the noise.
        provisional: why the answer may change: too few seeds, or test rows whose noise is unknown; empty if settled.
        recommended: method and budget whose networks to use; ("mtl", None) if grouping is not worth it.
        groups: the networks to use.
        candidate: method and budget of the grouping that did best on validation; None if none was tried.
        candidate_groups: its networks.
        validation: its mean relative change against one network on validation; negative is better.
        estimate: the same on test, mean over seeds.
        low: lower end of the interval of `confidence` for it; None with one seed.
        high: upper end.
        confidence: of the interval.
        seeds: how many seeds were compared.
        tried: how many different groupings it was the best of.
        seed_stderr: the part of the noise that seeds show; None with one seed.
        row_stderr: the part that comes from finitely many test rows; None if not known.
        at_least: how large an improvement had to be, as a share.
        training_cost: of its networks, in trainings of the one network; None if unknown.
        deciding_cost: of deciding on them, likewise.
        size: parameters of its networks against those of the one network; None if unknown.
        searched: whether `auto` looked for groups.
        diverged: methods and budgets with a network that diverged, which are no candidates.
    """

    worth_it: bool
    provisional: tuple[str, ...]
    recommended: Label
    groups: tuple[Group, ...]
    candidate: Label | None = None
    candidate_groups: tuple[Group, ...] = ()
    validation: float | None = None
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    confidence: float = CONFIDENCE
    seeds: int = 0
    tried: int = 0
    seed_stderr: float | None = None
    row_stderr: float | None = None
    at_least: float = 0.0
    training_cost: float | None = None
    deciding_cost: float | None = None
    size: float | None = None
    searched: bool = False
    diverged: tuple[Label, ...] = ()

    def __str__(self) -> str:
        from ._text import verdict_text

        return verdict_text(self)

    def to_document(self) -> dict[str, Any]:
        """Every field, as JSON can hold it."""
        document = {name: _plain(value) for name, value in asdict(self).items()}
        for name in ("groups", "candidate_groups"):
            document[name] = [
                {"trains": sorted(group.trains), "serves": sorted(group.serves)} for group in getattr(self, name)
            ]
        return document | {"text": str(self)}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
