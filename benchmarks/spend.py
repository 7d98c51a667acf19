"""How well does `auto` spend k networks (see the README)?

    python benchmarks/spend.py --data DIR --device cuda --json spend.json
    python benchmarks/spend.py nhanes --repetitions 2 --efforts 6,20
    python benchmarks/spend.py --show spend.json
    python benchmarks/spend.py --show benchmarks/spend_results.json --write-docs    # updates benchmarks/README.md

Problems, repetitions and judges are those of `fair.py`, and so are the other methods (`--fair` trains them too). The
effort counts every training until the recommendation stands, with the steps of students in full.
"""

import argparse
import json
import math
import multiprocessing
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import fair
from fair import Case, CaseResult, Gate, Pool, Prepared
from fair_problems import PROBLEMS
from markdown import progress, replace_part, table
from spend_variants import RANDOM_HINTS, RANDOM_SETS, Variant, allow_random_sets, shuffle_hints, variants
from tagalong.affinity import Affinity
from tagalong.group import Group, Taught
from tagalong.learn import Diverged, Job, Lesson, Problem, Trained, build_network, outputs_on, train_many
from tagalong.study import Cost, Decision, NetworkResult
from tagalong.study.search.answers import ALL, Answers
from tagalong.study.uncertainty import row_stderr

EFFORTS = (3, 6, 20, 60)
SHOWN = ("auto", "auto, one pass")  # with all their results; the others are compared with "auto"
FRESH_SEEDS = 3  # that judge a recipe


@dataclass(frozen=True)
class Outcome:
    """What `auto` reached with a budget.

    Attributes:
        method: "auto" with the options that differ.
        effort: the effort that it was given.
        spent: the effort that it spent.
        budget: the number of networks in use.
        very: the change with the very networks that it chose, relative to one plain network.
        recipe: the change with the same plan and fresh seeds.
        expected: the change that it expected, or None.
        doubt: the standard error of what it expected, or None.
        pool: the kind of networks that it chose from.
        error: the standard error of `very` over test rows, or None if unknown.
    """

    method: str
    effort: int
    spent: float
    budget: int
    very: float
    recipe: float
    expected: float | None = None
    doubt: float | None = None
    pool: str = ""
    error: float | None = None

    @property
    def is_within_doubt(self) -> bool:
        """Whether the truth, which has a standard error of its own, differs by at most one from what was expected."""
        return abs(self.very - self.expected) <= math.hypot(self.doubt, self.error or 0.0)


@dataclass
class SpendResult:
    """The results on one problem and repetition.

    Attributes:
        problem: the name of the problem.
        repetition: the number of the repetition.
        outcomes: the results of `auto`.
        best_of: the changes of `best-of`, by effort and budget, as in `fair.py`.
        seconds: the duration.
    """

    problem: str
    repetition: int
    outcomes: list[Outcome] = field(default_factory=list)
    best_of: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0


class TeachingPool(Pool):
    """A pool whose networks can also be taught by others, and that returns their answers."""

    can_teach = True

    def __init__(self, problem: Problem, device: str) -> None:
        super().__init__(problem, device)
        self.jobs_by_key: dict[str, Job] = {}
        self.lessons: dict[Taught, Lesson] = {}
        self.answers: dict[tuple[Job, str], dict[str, Tensor]] = {}

    def share(self, other: "TeachingPool") -> None:
        """Shares networks and answers with another pool."""
        for name in ("trained", "affinities", "jobs_by_key", "lessons", "answers"):
            setattr(self, name, getattr(other, name))

    def train(self, jobs: Iterable[Job]) -> list[Trained]:
        """Trains the networks that are missing, students after all others, and returns all of them."""
        wanted = list(dict.fromkeys(jobs))
        super().train([job for job in wanted if job.taught is None])
        missing = [job for job in wanted if job.taught is not None and job not in self.trained]
        for rows in dict.fromkeys((job.taught.mixtures, job.taught.unlabelled) for job in missing):
            self._train_students([job for job in missing if (job.taught.mixtures, job.taught.unlabelled) == rows])
        return [self.trained[job] for job in wanted]

    def _train_students(self, jobs: Sequence[Job]) -> None:
        lessons = {job: self._lesson(job.taught) for job in jobs}
        targets = {job: lesson.targets(job) for job, lesson in lessons.items()}
        try:
            for one in train_many(lessons[jobs[0]].problem, jobs, device=self.device, targets=targets):
                self.trained[one.job] = one
        except Diverged as error:
            self.trained |= {one.job: one for one in error.networks}

    def _lesson(self, taught: Taught) -> Lesson:
        key = Lesson.of(taught)
        if key not in self.lessons:
            teachers = {name: self.trained[self.jobs_by_key[name]] for name in taught.teachers}
            self.lessons[key] = Lesson.described_by(taught, teachers, self.problem, device=self.device)
        return self.lessons[key]

    def _pack(self, one: Trained) -> NetworkResult:
        key = f"{'+'.join(one.job.tasks)} {one.job.seed} {one.job.width} {one.job.taught!r} {one.job.network}"
        self.jobs_by_key[key] = one.job
        result = super()._pack(one)
        return NetworkResult(**{**vars(result), "key": key})

    def outputs(self, jobs: Iterable[Job], part: str) -> dict[Job, dict[str, Tensor]]:
        """Returns the outputs of networks."""
        found = {}
        for job in dict.fromkeys(jobs):
            if (job, part) not in self.answers:
                one = self.trained[job]
                problem = self.problem.with_network(job.network)
                network = build_network(problem, job.tasks, job.seed, job.width).to(self.device)
                network.load_state_dict(one.state)
                inputs = getattr(self.problem, part).inputs.to(self.device)
                outputs = outputs_on(network, inputs)
                self.answers[job, part] = {task: values.cpu() for task, values in outputs.items()}
            found[job] = self.answers[job, part]
        return found

    def targets(self, part: str) -> Mapping[str, Tensor]:
        """Returns the targets of each task."""
        return getattr(self.problem, part).targets

    def average_losses(self, groups: Sequence[Group], seed: int) -> np.ndarray:
        """Returns the test loss of each task from the average answers of the networks that serve it."""
        return self._test_answers(groups, seed).losses([tuple(range(len(groups)))])[0, :, ALL]

    def test_rows(self, groups: Sequence[Group], seed: int) -> dict[str, np.ndarray]:
        """Returns the loss of each test row, by task, from the average answers of the networks that serve it."""
        answers, members = self._test_answers(groups, seed), tuple(range(len(groups)))
        return {task.name: answers.row_losses(number, members) for number, task in enumerate(answers.tasks)}

    def _test_answers(self, groups: Sequence[Group], seed: int) -> Answers:
        jobs = {group: self.group_job(group, seed) for group in groups}
        self.train(jobs.values())
        outputs = self.outputs(jobs.values(), "test")
        answers = Answers(self.problem.tasks, self.targets("test"))
        for group, job in jobs.items():
            answers.add({task: outputs[job][task] for task in group.serves})
        return answers


class SearchPool(TeachingPool):
    """Asks a gate for networks, and shares them with the pool of the gate."""

    def __init__(self, gate: Gate, variant: Variant) -> None:
        super().__init__(gate.pool.problem, gate.pool.device)
        self.share(gate.pool)
        self._gate = gate
        self.draws_sets, self._shuffles_hints = variant.name == RANDOM_SETS, variant.name == RANDOM_HINTS

    def measure_affinity(
        self, seeds: Sequence[int], settings: Mapping[str, Any], method: str = ""
    ) -> tuple[Affinity, dict[int, Cost]]:
        """Returns the affinities, or affinities that say nothing."""
        affinity, costs = super().measure_affinity(seeds, settings, method)
        return (shuffle_hints(affinity, seeds[0]) if self._shuffles_hints else affinity), costs

    def train(self, jobs: Iterable[Job]) -> list[Trained]:
        """Returns networks, which are trained together with those that other searches ask for."""
        wanted = list(jobs)
        self._gate.train(wanted)
        return [self.trained[job] for job in wanted]


class SpendCase(Case):
    """Compares variants of `auto` on one problem and repetition."""

    def __init__(self, prepared: Prepared, options: argparse.Namespace) -> None:
        super().__init__(prepared, options)
        self.pool = TeachingPool(self.problem, options.device)
        self.pool.affinities = prepared.affinities
        self.found = SpendResult(prepared.name, prepared.repetition)

    def run(self) -> tuple[CaseResult, SpendResult]:
        """Trains everything and returns the results of `fair.py` and those of `auto`."""
        start = time.perf_counter()
        self._compare_copies()
        self.found.best_of = {
            f"{row.effort} {row.budget}": row.very for row in self.result.rows if row.method == "best-of"
        }
        if self.options.fair:
            self._compare_wider()
            self._compare_groups()
        self.result.trained, self.result.seconds = len(self.pool.trained), time.perf_counter() - start
        self._compare_auto()
        self.found.seconds = time.perf_counter() - start
        return self.result, self.found

    def _compare_auto(self) -> None:
        plans = variants(self.options)
        made = _decide_together(Gate(self.pool, len(plans)), plans, self.options.budgets, self.first_seed)
        fresh = [self.first_seed + fair.FIRST_FRESH + number for number in range(FRESH_SEEDS)]
        choices = {
            (place, budget): decision.choices[budget, self.first_seed].groups
            for place, decision in enumerate(made)
            for budget in self.options.budgets
        }
        self.pool.train(
            self.pool.group_job(group, seed) for groups in choices.values() for group in groups for seed in fresh
        )
        for (place, budget), groups in choices.items():
            about = made[place].about
            self.found.outcomes.append(
                Outcome(
                    plans[place].name,
                    plans[place].effort,
                    about["spent"],
                    budget,
                    self._change([self.pool.average_losses(groups, self.first_seed)]),
                    self._change([self.pool.average_losses(groups, seed) for seed in fresh]),
                    about["chosen"][str(budget)]["expected"],
                    about["chosen"][str(budget)]["doubt"],
                    about["chosen"][str(budget)]["pool"],
                    self._error(groups),
                )
            )

    def _error(self, groups: Sequence[Group]) -> float:
        """Returns the standard error over test rows of the change with the very networks."""
        seeds = [self.first_seed + fair.FIRST_FRESH + number for number in range(fair.FRESH_COPIES)]
        trained = self.pool.train(Job(self.problem.names, seed) for seed in seeds)
        plain = {
            task: np.mean([one.test[task].rows for one in trained if not one.diverged], axis=0)
            for task in self.problem.names
        }
        return row_stderr([self.pool.test_rows(groups, self.first_seed)], [plain], self.problem.test.groups)

    def _change(self, losses: Sequence[np.ndarray]) -> float:
        return float((np.mean(losses, 0) / self.result.plain - 1).mean())


def _decide_together(gate: Gate, plans: Sequence[Variant], budgets: Sequence[int], seed: int) -> list[Decision]:
    def decide(plan: Variant) -> Decision:
        try:
            return plan.method.decide(SearchPool(gate, plan), budgets, [seed])
        finally:
            gate.leave()

    allow_random_sets()
    with ThreadPoolExecutor(len(plans)) as threads:
        return list(threads.map(decide, plans))


def show(results: Sequence[SpendResult], kind: str) -> str:
    """Formats the mean changes over repetitions, in percent, with standard errors, and those of `best-of`."""
    lines = []
    budgets = sorted({one.budget for result in results for one in result.outcomes})
    for problem in dict.fromkeys(one.problem for one in results):
        some = [one for one in results if one.problem == problem]
        shown = [one for result in some for one in result.outcomes if one.method in SHOWN]
        for method, effort in dict.fromkeys((one.method, one.effort) for one in shown):
            own = [one for one in shown if (one.method, one.effort) == (method, effort)]
            cells = [_with_error([getattr(one, kind) for one in own if one.budget == budget]) for budget in budgets]
            spent = statistics.mean(one.spent for one in own)
            lines.append([problem, method, f"{effort} ({spent:.1f})", *cells])
            keys = [f"{effort} {budget}" for budget in budgets]
            if method == "auto" and kind == "very" and any(keys[0] in one.best_of for one in some):
                copies = [[one.best_of[key] for one in some if key in one.best_of] for key in keys]
                lines.append([problem, "best-of", str(effort), *map(_with_error, copies)])
    return table(["problem", "method", "effort (spent)", *(f"k = {budget}" for budget in budgets)], lines)


def _with_error(changes: Sequence[float]) -> str:
    return fair._with_error([100 * change for change in changes])


def show_calibration(results: Sequence[SpendResult]) -> str:
    """Formats how often the truth is within one standard error of what `auto` expected."""
    lines = []
    for problem in [*dict.fromkeys(one.problem for one in results), "all"]:
        own = [
            one
            for result in results
            for one in result.outcomes
            if problem in (result.problem, "all") and one.method == "auto" and one.doubt
        ]
        if not own:
            continue
        inside = [one.is_within_doubt for one in own]
        bias = statistics.mean(one.very - one.expected for one in own)
        doubt = statistics.mean(one.doubt for one in own)
        lines.append(
            [problem, str(len(own)), f"{statistics.mean(inside):.0%}", f"{100 * doubt:.1f}", f"{100 * bias:+.1f}"]
        )
    return table(["problem", "cases", "within ± doubt", "mean doubt", "truth − expected"], lines)


def show_leads(results: Sequence[SpendResult]) -> str:
    """Formats the difference between `auto` and `best-of`, in pairs of the same repetition, split and effort.

    Each cell has the mean over problems, and the problem with the largest difference.
    """
    lines = []
    budgets = sorted({one.budget for result in results for one in result.outcomes})
    autos = [(result, one) for result in results for one in result.outcomes if one.method == "auto"]
    for effort in dict.fromkeys(one.effort for _, one in autos):
        cells = []
        for budget in budgets:
            pairs: dict[str, list[float]] = {}
            for result, one in autos:
                if (one.effort, one.budget) == (effort, budget):
                    pairs.setdefault(result.problem, []).append(one.very - result.best_of[f"{effort} {budget}"])
            means = {problem: statistics.mean(found) for problem, found in pairs.items()}
            worst = max(means, key=means.__getitem__)
            cells.append(f"{_with_error([statistics.mean(means.values())])} ({worst} {_with_error(pairs[worst])})")
        lines.append([str(effort), str(len(means)), *cells])
    return table(["effort", "problems", *(f"k = {budget}" for budget in budgets)], lines)


def show_parts(results: Sequence[SpendResult]) -> str:
    """Formats how much worse `auto` is with a part left out or replaced by chance, in pairs of the same repetition."""
    budgets = sorted({one.budget for result in results for one in result.outcomes})
    pairs: dict[tuple[str, int], dict[int, list[float]]] = {}
    for result in results:
        auto = {(one.effort, one.budget): one.very for one in result.outcomes if one.method == "auto"}
        for one in result.outcomes:
            if one.method not in SHOWN and (one.effort, one.budget) in auto:
                found = pairs.setdefault((one.method, one.effort), {budget: [] for budget in budgets})
                found[one.budget].append(one.very - auto[one.effort, one.budget])
    lines = [
        [method, str(effort), str(len(found[budgets[0]])), *(_with_error(found[budget]) for budget in budgets)]
        for (method, effort), found in pairs.items()
    ]
    return table(["instead of `auto`", "effort", "cases", *(f"k = {budget}" for budget in budgets)], lines)


def read(*paths: Path) -> list[SpendResult]:
    """Reads the results of earlier runs, and merges those of the same problem and repetition."""
    merged: dict[tuple[str, int], SpendResult] = {}
    for one in (one for path in paths for one in json.loads(path.read_text())):
        known = merged.setdefault((one["problem"], one["repetition"]), SpendResult(one["problem"], one["repetition"]))
        known.outcomes += [Outcome(**row) for row in one["outcomes"]]
        known.best_of |= one["best_of"]
        known.seconds += one["seconds"]
    return sorted(merged.values(), key=lambda one: (list(PROBLEMS).index(one.problem), one.repetition))


def show_all(results: Sequence[SpendResult]) -> str:
    """Formats all tables of the README."""
    parts = ["The very networks that were chosen:", show(results, "very")]
    parts += ["`auto` minus `best-of`, in points: the mean over problems, and the problem where it is worst:"]
    parts += [show_leads(results), "The recipe, with fresh seeds:", show(results, "recipe")]
    parts += ["What `auto` expected, and the truth:", show_calibration(results)]
    parts += ["With a part left out or replaced, in points more than `auto`:", show_parts(results)]
    return "\n\n".join(parts)


def save(results: Sequence[SpendResult], path: Path) -> None:
    """Saves results."""
    path.write_text(json.dumps([asdict(one) for one in results], indent=1))


def write_docs(results: Sequence[SpendResult]) -> None:
    """Replaces the tables of the README beside this file."""
    replace_part(fair.PAGE, "spend.py", "tables", show_all(results))


def main() -> None:
    """Runs the missing cases and prints the tables. Results are saved after each case."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("problems", nargs="*", default=list(PROBLEMS), metavar="PROBLEM", help=", ".join(PROBLEMS))
    parser.add_argument("--repetitions", type=_range, default=range(5), help="their number, or a range such as 1-3")
    parser.add_argument("--efforts", type=fair._numbers, default=EFFORTS)
    parser.add_argument("--budgets", type=fair._numbers, default=fair.BUDGETS)
    parser.add_argument("--ablations", action="store_true", help="also leave out one part of `auto` at a time")
    parser.add_argument("--only-ablations", action="store_true", help="only leave out one part of `auto` at a time")
    parser.add_argument("--fair", type=Path, help="train the other methods of fair.py too, and save their results here")
    parser.add_argument("--base", choices=("truth", "default"), default="truth", help="the plain network on tables")
    parser.add_argument("--data", type=Path, help="folder with qm9/, tox21/, nhanes.tsv and digits.npz")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--workers", type=int, default=1, help="number of processes that prepare cases")
    parser.add_argument("--rows", type=int, help="rows of each split, for a quick trial")
    parser.add_argument("--epochs", type=int, help="maximum number of epochs, with --rows")
    parser.add_argument("--json", type=Path, help="where to save all results; those it has already are kept")
    parser.add_argument("--limit-seconds", type=float, default=1e6, help="stop after this time; the rest is missing")
    parser.add_argument("--show", type=Path, nargs="+", help="print the tables of earlier runs; --json merges them")
    parser.add_argument("--write-docs", action="store_true", help="with --show: replace the tables of the README")
    options = parser.parse_args()
    if options.show:
        shown = read(*options.show)
        if options.json:
            save(shown, options.json)
        if options.write_docs:
            write_docs(shown)
        print(show_all(shown))
        return
    options.boosting = False
    results = read(options.json) if options.json and options.json.exists() else []
    compared = fair.read_results(options.fair) if options.fair and options.fair.exists() else []
    known = {(one.problem, one.repetition) for one in results}
    cases = [(name, repetition) for repetition in options.repetitions for name in options.problems]
    end = time.monotonic() + options.limit_seconds
    with multiprocessing.get_context("spawn").Pool(options.workers) as pool:
        missing = [(*case, options) for case in cases if case not in known]
        for prepared in fair._until(end, pool.imap(fair.prepare, missing)):
            if not isinstance(prepared, Prepared):
                continue
            case, one = SpendCase(prepared, options).run()
            progress(
                f"{one.problem}, repetition {one.repetition}: {one.seconds:.0f} s ({case.seconds:.0f} s for fair.py)"
            )
            results.append(one)
            compared.append(case)
            if options.json:
                save(results, options.json)
            if options.fair:
                options.fair.write_text(json.dumps([asdict(one) for one in compared], indent=1))
    print(show_all(results))


def _range(text: str) -> range:
    first, _, last = text.rpartition("-")
    return range(int(first), int(last) + 1) if first else range(int(last))


if __name__ == "__main__":
    main()
