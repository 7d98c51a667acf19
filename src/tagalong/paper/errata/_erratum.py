"""One disagreement."""

from __future__ import annotations

from typing import NamedTuple


class Erratum(NamedTuple):
    """Something printed that is not so.

    Attributes:
        where: in the paper.
        printed: what it says.
        found: what comes out.
        why: how that was found.
    """

    where: str
    printed: str
    found: str
    why: str
