"""The results of a study, with a table and a verdict, as text, HTML, a DataFrame or a JSON file."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tagalong.affinity import CAUTION
from tagalong.errors import InvalidInput
from tagalong.files import json_safe
from tagalong.rendering import terminal_width

from .documents import ResultsFile, ResultsFileError
from .frame import make_frame
from .records import TOGETHER, Label, ProblemInfo, Record, SkillScale
from .summary import MethodSummary, summarize
from .verdict import Verdict
from .words import NARROWEST, WIDTH, results_text, verdict_text

if TYPE_CHECKING:
    from tagalong.learn import Problem

    from .best import Best

FILE = "results.json"


class Results:
    """The results of a study.

    Use `print`, `table`, `to_frame`, `verdict` and `best` to access the results.

    Args:
        records: one record per method, budget and seed.
        problem: the problem that was studied.
        settings: the settings of the study. `confirming_seeds` affects the verdict.
        out: the folder of the run, which contains the recommended networks.
        scale: what turns losses into skills. If None, skills are relative to the mean losses of `mtl`.
        verdict: the verdict. If None, it is made from the mean losses of the records.
    """

    def __init__(
        self,
        records: Sequence[Record],
        *,
        problem: ProblemInfo,
        settings: Mapping[str, Any] | None = None,
        out: str | Path | None = None,
        scale: SkillScale | None = None,
        verdict: Verdict | None = None,
    ) -> None:
        self.records = tuple(records)
        self.problem = problem
        self.settings = dict(settings or {})
        self.out = None if out is None else Path(out)
        self._scale, self._verdict = scale, verdict
        self.trained_on: Problem | None = None  # which `best` needs if layers are your own

    @property
    def scale(self) -> SkillScale | None:
        """What turns losses into skills, or None if there are no results for `mtl` to compare with."""
        if self._scale is None and self.records_of(TOGETHER):
            self._decide_by_losses()
        return self._scale

    def table(self) -> list[MethodSummary]:
        """Summarizes each method and budget, averaged over seeds.

        See `to_frame` for individual seeds and tasks. Methods are listed in the order of the study, with smaller
        budgets first.

        Example:
            >>> from tagalong.group import Group
            >>> from tagalong.study import Score
            >>> tasks = ["age", "ill"]
            >>> scores = {"age": Score(loss=0.5, error=0.1), "ill": Score(loss=0.25, error=0.2)}
            >>> mtl = Record("mtl", None, seed=0, groups=(Group(tasks, tasks),), val=scores, test=scores)
            >>> results = Results([mtl], problem=ProblemInfo.from_tasks(tasks))
            >>> [(row.method, row.budget, row.total, row.error["ill"]) for row in results.table()]
            [('mtl', None, 0.75, 0.2)]
        """
        return summarize(self.records, self.scale)

    def to_frame(self) -> Any:
        """Returns a pandas DataFrame with one row per method, budget, seed and task.

        The columns are

        - `method`, `budget` (missing for methods without one), `seed` and `task` identify the row.

        - `val_skill` and `test_skill` are the skill of the task: the share of a constant's loss that is avoided.

        - `val_loss`, `test_loss`, `val_error`, `test_error` and `error_measure` are the scores of the task in the
          network that serves it, or in the average of the networks that serve it.

        - `network` is a sorted tuple of the tasks in the network that serves this task. The value is None for `random`,
          which is an average over many groupings. If the answers of several networks are averaged, it is the first.

        - `members` is the number of networks that serve this task, which is 1 unless their answers are averaged, and 0
          for `random`.

        - `networks`, `honest`, `diverged`, `deciding_cost`, `training_cost`, `parameters` and `latency` are the same
          for all tasks of a method, budget and seed (see `MethodSummary`), except that `diverged` is a boolean.

        Returns:
            A `pandas.DataFrame`.

        Example:
            >>> from tagalong.group import Group
            >>> from tagalong.study import Score
            >>> def record(method, groups, age, ill):
            ...     scores = {"age": Score(age, error=0.1), "ill": Score(ill, error=0.2)}
            ...     return Record(method, None, seed=0, groups=groups, val=scores, test=scores)
            >>> mtl = record("mtl", (Group(["age", "ill"], ["age", "ill"]),), age=0.5, ill=0.25)
            >>> stl = record("stl", (Group(["age"], ["age"]), Group(["ill"], ["ill"])), age=0.45, ill=0.3)
            >>> frame = Results([mtl, stl], problem=ProblemInfo.from_tasks(["age", "ill"])).to_frame()
            >>> print(frame[["method", "task", "test_loss", "test_skill", "network"]].to_string(index=False))
            method task  test_loss  test_skill    network
               mtl  age       0.50         0.0 (age, ill)
               mtl  ill       0.25         0.0 (age, ill)
               stl  age       0.45         0.1     (age,)
               stl  ill       0.30        -0.2     (ill,)
        """
        return make_frame(self.records, self.problem, self.scale)

    def verdict(self) -> Verdict:
        """Returns which models to use, how good they are, and how much better than the reference.

        Raises:
            InvalidInput: If there are no results for `mtl` to compare with.
        """
        if self._verdict is None:
            self._verdict = self._decide_by_losses()
        return self._verdict

    def _decide_by_losses(self) -> Verdict:
        from .evidence import gather_evidence  # loads torch, which reading results does not need
        from .rule import decide

        if not self.records_of(TOGETHER):
            raise InvalidInput("methods", "must include mtl, with which everything is compared")
        confirming = self.settings.get("confirming_seeds", ())
        choosing = [record for record in self.records if record.seed not in confirming]
        fresh = [record for record in self.records if record.seed in confirming]
        evidence = gather_evidence(None, choosing, TOGETHER)
        self._scale = self._scale or evidence.scale
        return decide(evidence, gather_evidence(None, fresh, TOGETHER) if fresh else None)

    def best(self, *, problem: Problem | None = None) -> Best:
        """Loads the recommended networks from the run's folder, with heads only for the tasks that each network serves.

        Args:
            problem: the problem of the study, which is needed only for encoders and heads of your own, and if these
                results were loaded from a file.

        Raises:
            InvalidInput: If the results were not written to a folder.
        """
        from .best import Best

        if self.out is None:
            raise InvalidInput("", "no networks were saved with these results", hint="pass `out` to the study")
        return Best.load(self.out, problem=problem or self.trained_on)

    def records_of(self, label: Label) -> list[Record]:
        """Returns the records of a method and budget, sorted by seed."""
        same = [record for record in self.records if record.label == label]
        return sorted(same, key=lambda record: record.seed)

    def to_document(self) -> dict[str, Any]:
        """Converts the results, including the table and the verdict, to a JSON document.

        NaN is converted to null.
        """
        document: dict[str, Any] = json_safe(
            {
                "format": ResultsFile.kind,
                "version": ResultsFile.format_version,
                "caution": CAUTION,
                "problem": self.problem,
                "settings": self.settings,
                "scale": self.scale,
                "records": self.records,
                "table": self.table(),
                "verdict": self.verdict() if self.records_of(TOGETHER) else None,
            }
        )
        return document

    def save(self, path: str | Path) -> Path:
        """Writes the results to a JSON file atomically and returns its path.

        Args:
            path: the file to write, or a folder in which to write `results.json`.
        """
        file = Path(path)
        file = file / FILE if file.is_dir() or not file.suffix else file
        ResultsFile.write(file, self.to_document())
        return file

    @staticmethod
    def load(path: str | Path) -> Results:
        """Reads a file written by `save`, or `results.json` in a folder."""
        file = Path(path)
        file = file / FILE if file.is_dir() else file
        if not file.exists():
            raise ResultsFileError("path", "must be a results file or the folder of a finished run", f"no file {file}")
        document = ResultsFile.read(file)
        return Results(
            document.records,
            problem=document.problem,
            settings=document.settings.model_dump(exclude_unset=True),
            out=file.parent,
            scale=document.scale,
            verdict=document.verdict,
        )

    def to_text(self, width: int | None = None, *, details: bool = False) -> str:
        """Formats the verdict.

        Args:
            width: the width of the terminal in characters, or None for 100. It is at least 40 and at most 100.
            details: whether to add all methods and tasks, and the networks to use.
        """
        width = max(width or WIDTH, NARROWEST)
        return results_text(self, width) if details else verdict_text(self.verdict(), min(width, WIDTH))

    def __str__(self) -> str:
        return self.to_text(terminal_width(), details=True)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.to_text(details=True))}</pre>"

    def __repr__(self) -> str:
        methods = ", ".join(dict.fromkeys(record.method for record in self.records))
        return f"Results({self.problem.name!r}, {len(self.problem.tasks)} tasks: {methods})"
