"""What a study found: every record, the table, the verdict and the trained answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tagalong._names import refuse

from ._change import Label
from ._decide import decide
from ._info import ProblemInfo
from ._record import Record
from ._summary import Line, summarise
from ._verdict import Verdict

if TYPE_CHECKING:
    from ._best import Best


class Results:
    """What a study found.

    Args:
        records: one per method, budget and seed.
        problem: what it is about.
        noise: for each method and budget the row standard error of its change against `mtl`, see `row_stderr`.
        settings: what the study was asked; `price_per_hour` among them gives money, `confirming_seeds` are seeds that
            no choice has seen, see `decide`; `diverged_seeds` are left out, since `mtl` diverged with them.
        out: the folder of the run, where the recommended networks lie.
    """

    def __init__(
        self,
        records: Sequence[Record],
        *,
        problem: ProblemInfo,
        noise: Mapping[Label, float] | None = None,
        settings: Mapping[str, Any] | None = None,
        out: str | Path | None = None,
    ) -> None:
        self.records = tuple(records)
        self.problem = problem
        self.noise = dict(noise or {})
        self.settings = dict(settings or {})
        self.out = None if out is None else Path(out)
        refuse(self._problems())

    def _problems(self) -> list[str]:
        if not self.records:
            return ["`records` must hold at least one record, found none"]
        problems, seen = [], set()
        for record in self.records:
            label = (record.method, record.budget, record.seed)
            for part in ("val", "test"):
                found = set(getattr(record, part))
                if found != set(self.problem.tasks):
                    odd = ", ".join(sorted(found ^ set(self.problem.tasks)))
                    problems.append(f"`records`: {label} must have a {part} outcome for every task, odd: {odd}")
            if label in seen:
                problems.append(f"`records` must be distinct, found {label} more than once")
            seen.add(label)
        return problems

    def table(self) -> list[Line]:
        """One line per method and budget, means over seeds."""
        return summarise(self.records, self.settings.get("price_per_hour"))

    @cached_property
    def _verdict(self) -> Verdict:
        return self._decided(0.0)

    def _decided(self, at_least: float) -> Verdict:
        confirming = self.settings.get("confirming_seeds", ())
        left_out = self.settings.get("diverged_seeds", ())
        return decide(self.records, self.noise, at_least=at_least, confirming=confirming, left_out=left_out)

    def verdict(self, *, at_least: float = 0.0) -> Verdict:
        """Is any grouping worth it?

        Args:
            at_least: grouping must lower the losses by more than this share, on average over tasks.
        """
        return self._decided(at_least) if at_least else self._verdict

    def best(self) -> Best:
        """The recommended networks, trained, with the heads they serve only; read from the folder of the run."""
        from ._best import Best

        if self.out is None:
            raise ValueError("these results have no folder with networks; give `out=` to the study")
        return Best.load(self.out)

    def records_of(self, label: Label) -> list[Record]:
        """The records of a method and budget, by seed."""
        found = [record for record in self.records if (record.method, record.budget) == label]
        return sorted(found, key=lambda record: record.seed)

    def to_document(self) -> dict[str, Any]:
        """Everything, with the verdict, as JSON can hold it."""
        from ._results_file import to_document

        return to_document(self)

    def save(self, path: str | Path) -> Path:
        """Writes the results as JSON, whole or not at all; gives the file.

        Args:
            path: the file, or a folder that gets a `results.json`.
        """
        from ._results_file import write

        return write(self, Path(path))

    @staticmethod
    def load(path: str | Path) -> Results:
        """Reads what `save` wrote; a folder means the `results.json` in it."""
        from ._results_file import read

        return read(Path(path))

    def __str__(self) -> str:
        from ._text import results_text

        return results_text(self)

    def _repr_html_(self) -> str:
        from ._results_html import html_table  # only in notebooks

        return html_table(self)

    def __repr__(self) -> str:
        methods = ", ".join(dict.fromkeys(record.method for record in self.records))
        return f"Results({self.problem.name!r}, {len(self.problem.tasks)} tasks: {methods})"
