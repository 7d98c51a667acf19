"""The candidate once more, with seeds that no choice has seen."""

from __future__ import annotations

from collections.abc import Sequence

from ._change import TOGETHER, Label
from ._decisions import choices_again
from ._info import ProblemInfo
from ._lab import Lab
from ._record import Record
from ._records import Decisions, records_of
from ._results import Results


def confirmed(
    lab: Lab, decisions: Decisions, records: Sequence[Record], seeds: Sequence[int], info: ProblemInfo
) -> tuple[list[Record], list[int]]:
    """Trains the candidate of the verdict and all together with fresh seeds; where it diverges, the next candidate.

    Args:
        lab: trains.
        decisions: of all methods.
        records: of all methods with the seeds that they decided from.
        seeds: fresh ones.
        info: what the records are about.

    Returns:
        The records of fresh seeds, and those seeds with which all together diverged, so that nothing can be compared.
    """
    found: list[Record] = []
    lost: list[int] = []
    tried: list[Label] = [TOGETHER]
    left = list(seeds)
    while left and (candidate := _candidate([*records, *found], seeds, info)) not in (None, *tried):
        assert candidate is not None
        labels = [candidate] if found else [TOGETHER, candidate]
        found += records_of(lab, choices_again(decisions, *labels, seeds=left), left)
        lost += [record.seed for record in found if record.method == "mtl" and record.diverged]
        found = [record for record in found if record.seed not in lost]
        left = [seed for seed in left if seed not in lost]
        tried.append(candidate)
    return found, lost


def _candidate(records: Sequence[Record], seeds: Sequence[int], info: ProblemInfo) -> Label | None:
    return Results(records, problem=info, settings={"confirming_seeds": list(seeds)}).verdict().candidate
