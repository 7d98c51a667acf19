"""The results of a study, with a table and a verdict, as text, HTML, a DataFrame or a JSON file."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tagalong.affinity import CAUTION
from tagalong.errors import InvalidInput, pluralize
from tagalong.files import json_safe, report_damage
from tagalong.rendering import terminal_width, wrap

from .documents import ResultsFile, ResultsFileError
from .frame import make_frame
from .learning import Learning
from .overview_text import overview_text
from .records import TOGETHER, Label, ProblemInfo, Record, label_key
from .search_log import SearchLog
from .summary import MethodSummary, TaskChange, summarize, task_change
from .text import (
    NARROWEST,
    WIDTH,
    label_text,
    legend,
    methods_table,
    networks_list,
    tasks_table,
)
from .uncertainty import RowNoise
from .verdict import AT_LEAST, Verdict, decide

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
        noise: for each method and budget, the standard error of its change from `mtl` due to the finite number of test
            rows (see `row_stderr`), or a `RowNoise` with the noise of more comparisons.
        settings: the settings of the study. Three settings affect the results: `price_per_hour`, `confirming_seeds`
            (seeds not used to choose groups; see `decide`) and `diverged_seeds` (seeds without records because `mtl`
            diverged).
        out: the folder of the run, which contains the recommended networks.
        learning: what is known about how well networks learned. If None, every task counts in the verdict.

    """

    def __init__(
        self,
        records: Sequence[Record],
        *,
        problem: ProblemInfo,
        noise: Mapping[Label, float] | RowNoise | None = None,
        settings: Mapping[str, Any] | None = None,
        out: str | Path | None = None,
        learning: Learning | None = None,
    ) -> None:
        self.records = tuple(records)
        self.problem = problem
        self.row_noise = RowNoise.of(noise)
        self.noise = dict(self.row_noise.recipe)
        self.settings = dict(settings or {})
        self.out = None if out is None else Path(out)
        self.learning = learning or Learning()
        self.trained_on: Problem | None = None  # which `best` needs if layers are your own

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
        return summarize(self.records, self.settings.get("price_per_hour"))

    def to_frame(self) -> Any:
        """Returns a pandas DataFrame with one row per method, budget, seed and task.

        The columns are

        - `method`, `budget` (missing for methods without one), `seed` and `task` identify the row.

        - `val_loss`, `test_loss`, `val_error`, `test_error` and `error_measure` are the scores of the task in the
          network that serves it, or in the average of the networks that serve it.

        - `val_change` and `test_change` are the relative changes in loss from `mtl` with the same seed (negative is
          better).

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
            >>> print(frame[["method", "task", "test_loss", "test_change", "network"]].to_string(index=False))
            method task  test_loss  test_change    network
               mtl  age       0.50          0.0 (age, ill)
               mtl  ill       0.25          0.0 (age, ill)
               stl  age       0.45         -0.1     (age,)
               stl  ill       0.30          0.2     (ill,)
        """
        return make_frame(self.records, self.problem)

    @cached_property
    def _default_verdict(self) -> Verdict:
        return self._make_verdict(AT_LEAST)

    def _make_verdict(self, at_least: float) -> Verdict:
        confirming = self.settings.get("confirming_seeds", ())
        left_out = self.settings.get("diverged_seeds", ())
        return decide(
            self.records,
            self.row_noise,
            at_least=at_least,
            confirming=confirming,
            excluded_seeds=left_out,
            learning=self.learning,
        )

    def verdict(self, *, at_least: float = AT_LEAST) -> Verdict:
        """Decides which networks to use, and whether more than one plain network is worth it.

        Args:
            at_least: the fraction by which every network after the first must reduce the losses, averaged over tasks,
                to be recommended. 0.005 is half a percent.

        Raises:
            InvalidInput: If there are no results for `mtl` to compare with, or `at_least` is negative.
        """
        return self._default_verdict if at_least == AT_LEAST else self._make_verdict(at_least)

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
        found = [record for record in self.records if record.label == label]
        return sorted(found, key=lambda record: record.seed)

    def changes_by_task(self, method: str, budget: int | None = None) -> dict[str, TaskChange]:
        """Returns each task's change from `mtl`, comparing networks with the same seed.

        Args:
            method: the name of the method.
            budget: the maximum number of networks, or None for methods without a budget.

        Raises:
            InvalidInput: If the method was not run with this budget, or it has no seeds in common with `mtl`.
        """
        together = {record.seed: record for record in self.records_of(TOGETHER)}
        mine = self.records_of((method, budget))
        pairs = [(record, together[record.seed]) for record in mine if record.seed in together]
        if not pairs:
            known = ", ".join(sorted({record.method for record in self.records}))
            raise InvalidInput(
                "`method` and `budget`",
                "must be in the results and share seeds with mtl",
                f"{method!r}, {budget!r}",
                f"choose a method from {known}",
            )
        return {task: task_change(task, pairs) for task in self.problem.tasks}

    def to_document(self) -> dict[str, Any]:
        """Converts the results, including the table and the verdict, to a JSON document.

        NaN is converted to null.
        """
        noise = {
            kind: {label_key(label): stderr for label, stderr in getattr(self.row_noise, kind).items()}
            for kind in ("recipe", "networks", "copies", "networks_from_copies")
        }
        document: dict[str, Any] = json_safe(
            {
                "format": ResultsFile.kind,
                "version": ResultsFile.format_version,
                "caution": CAUTION,
                "problem": self.problem,
                "settings": self.settings,
                "noise": noise,
                "learning": self.learning,
                "records": self.records,
                "table": self.table(),
                "verdict": self.verdict() if self.records_of(TOGETHER) else None,
            }
        )
        return document

    def save(self, path: str | Path) -> Path:
        """Writes the results to a JSON file atomically and returns its path.

        The file includes the table and the verdict for use by other programs, but `load` recomputes them.

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
        results = Results(
            document.records,
            problem=document.problem,
            noise=RowNoise(**document.noise),
            settings=document.settings.model_dump(exclude_unset=True),
            out=file.parent,
            learning=Learning(document.learning.p_values, document.learning.late),
        )
        if results.search_log is not None:
            with report_damage(file, ResultsFileError, ResultsFile.hint):
                results.search_log.to_text()  # which a damaged log does not survive
        return results

    @property
    def search_log(self) -> SearchLog | None:
        """The log of the search by `auto`, or None if `auto` was not run or had nothing to decide."""
        about = self.settings.get("decisions", {}).get("auto")
        return SearchLog(about) if about and about.get("steps") else None

    def to_text(self, width: int | None = None) -> str:
        """Formats a table of all methods, a table of all tasks for the best grouping, and the verdict.

        Args:
            width: the width of the terminal in characters, which limits the width of tables, or None for no limit. Text
                is wrapped at 100 characters or fewer.
        """
        width = None if width is None else max(width, NARROWEST)
        summaries, prose = self.table(), min(width or WIDTH, WIDTH)
        tasks, seeds = len(self.problem.tasks), max(summary.seeds for summary in summaries)
        title = f"{self.problem.name}: {pluralize(tasks, 'task')}, {pluralize(seeds, 'seed')}"
        methods, left_out = methods_table(summaries, width)
        parts = [title, "", *methods, "", *legend(summaries, prose, left_out)]
        by_label = {summary.label: summary for summary in summaries}
        if TOGETHER in by_label:
            verdict = self.verdict()
            if verdict.candidate is not None:
                together, mine = by_label[TOGETHER], by_label[verdict.candidate]
                parts += ["", f"By task, mtl and the groups of {label_text(verdict.candidate)}:"]
                parts += tasks_table(self.problem, together, mine, width)
                if not verdict.worth_it:
                    parts += ["", "The groups:", *networks_list(verdict.candidate_groups, prose)]
            parts += ["", verdict.to_text(prose)]
        if self.search_log is not None:
            parts += ["", self.search_log.to_text(prose)]
        if notes := self.settings.get("notes"):
            parts += ["", *(line for note in notes for line in wrap(note, prose))]
        return "\n".join(parts)

    def overview(self, width: int | None = None) -> str:
        """Formats the best way found for each number of networks, and short answers, on one screen.

        The answers say whether the recommended networks are worth it, whether groups matter or copies would do, whether
        everything was learnt, what the study cost, and where its report is.

        Args:
            width: the width of the terminal in characters, or None for 100. It is at least 40 and at most 100.

        Raises:
            InvalidInput: If there are no results for `mtl` to compare with.

        Example:
            >>> from tagalong.group import Group
            >>> from tagalong.study import Score
            >>> def record(method, budget, groups, loss, seed):
            ...     scores = {"age": Score(loss, error=0.1), "ill": Score(loss, error=0.2)}
            ...     return Record(method, budget, seed, groups, val=scores, test=scores)
            >>> both, copy = Group(["age", "ill"], ["age", "ill"]), Group(["age", "ill"], ["age", "ill"], copy=1)
            >>> plain = [record("mtl", None, (both,), loss, seed) for seed, loss in enumerate((0.50, 0.51, 0.49))]
            >>> copies = [record("ensemble", 2, (both, copy), loss, seed) for seed, loss in enumerate((0.4, 0.41, 0.4))]
            >>> results = Results([*plain, *copies], problem=ProblemInfo.from_tasks(["age", "ill"]))
            >>> for line in results.overview(80).splitlines()[1:4]:
            ...     print(line)
            networks  best way found            from one plain
                   1  1 plain network
                 * 2  2 copies         -19.3% (-21.4 to -17.2)
        """
        return overview_text(self, min(max(width or WIDTH, NARROWEST), WIDTH))

    def __str__(self) -> str:
        return self.to_text(terminal_width())

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.to_text())}</pre>"

    def __repr__(self) -> str:
        methods = ", ".join(dict.fromkeys(record.method for record in self.records))
        return f"Results({self.problem.name!r}, {len(self.problem.tasks)} tasks: {methods})"
