"""The wall-clock time of long work, in plain-loop trainings measured in the same run."""

import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from statistics import mean, median
from typing import TypeVar

import torch

from markdown import progress
from plain_training import train_plain
from tagalong.learn import Job, Problem, train, train_many
from tagalong.study import Study

T = TypeVar("T")
COLUMNS = ("what", "networks", "rounds", "seconds", "one plain training, s", "plain trainings")
EFFORT, BUDGETS, SEEDS, SUBSET_SEEDS = 60, (2, 3), 3, 8


@dataclass
class Units:
    """One row of the table.

    Attributes:
        networks: The number of trained networks.
        rounds: How often new networks were proposed, or None.
        seconds: The wall-clock seconds of everything.
        plain: The wall-clock seconds of a plain-loop training for all tasks, with early stopping.
        trainings: The ratio of both.
    """

    what: str
    networks: int
    rounds: int | None
    seconds: float
    plain: float
    trainings: float


class PlainClock:
    """Times work between plain trainings, so that a slow phase of the machine affects both.

    On a CPU, the plain trainings use one thread, which is fastest for small networks.
    """

    def __init__(self, problem: Problem, device: torch.device, seeds: int = SEEDS) -> None:
        self.problem, self.device, self.seeds = problem, device, seeds
        self._train_plain(0)  # loads and compiles what is loaded once
        train(problem, Job(problem.names, epochs=1), device=device)

    def time(self, work: Callable[[], T]) -> tuple[T, float, float]:
        """Returns the result of the work, its seconds, and the seconds of a plain training."""
        progress("plain trainings")
        alone = [self._train_plain(seed) for seed in range(self.seeds)]
        progress("the work to compare")
        done, seconds = self._wall_seconds(work)
        progress("plain trainings again")
        alone += [self._train_plain(seed) for seed in range(self.seeds)]
        return done, seconds, mean(alone)

    def _train_plain(self, seed: int) -> float:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        job = Job(self.problem.names, seed)
        _, seconds = self._wall_seconds(lambda: train_plain(self.problem, job, device=self.device))
        torch.set_num_threads(threads)
        return seconds

    def _wall_seconds(self, work: Callable[[], T]) -> tuple[T, float]:
        start = time.perf_counter()
        done = work()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return done, time.perf_counter() - start


def time_auto(problem: Problem, device: torch.device, executor: str, effort: float = EFFORT) -> Units:
    """Times a whole study with `auto`, from an empty folder to the report."""

    def study() -> tuple[int, int]:
        with tempfile.TemporaryDirectory() as out:
            comparison = Study(problem, out, executor=executor, device=str(device))
            settings = comparison.run(["auto"], budgets=BUDGETS, seeds=SEEDS, effort=effort).settings
        return settings["spent"]["networks"], len(settings["decisions"]["auto"]["steps"])

    (networks, rounds), seconds, plain = PlainClock(problem, device).time(study)
    what = f"auto on {problem.name}, effort {effort:g}, {SEEDS} seeds, {len(BUDGETS)} budgets"
    return Units(what, networks, rounds, seconds, plain, seconds / plain)


def time_subsets(problem: Problem, device: torch.device, sample: int | None = None) -> Units:
    """Times `train_many` on every subset of the tasks with every seed, or extrapolates from a random sample."""
    names = problem.names
    subsets = [tasks for size in range(1, len(names) + 1) for tasks in combinations(names, size)]
    jobs = [Job(tasks, seed) for seed in range(SUBSET_SEEDS) for tasks in subsets]
    chosen = jobs if sample is None else random.Random(0).sample(jobs, min(sample, len(jobs)))
    short = [Job(job.tasks, job.seed, epochs=1) for job in chosen[:2]]
    list(train_many(problem, short, device=device))
    _, seconds, plain = PlainClock(problem, device, SUBSET_SEEDS).time(
        lambda: list(train_many(problem, chosen, device=device))
    )
    seconds *= len(jobs) / len(chosen)
    source = "" if len(chosen) == len(jobs) else f", extrapolated from {len(chosen):,}"
    what = f"all {len(subsets):,} × {SUBSET_SEEDS} networks of {problem.name}{source}"
    return Units(what, len(jobs), None, seconds, plain, seconds / plain)


def middle(runs: list[Units]) -> Units:
    """Returns the repetition with the median number of plain trainings."""
    return min(runs, key=lambda run: abs(run.trainings - median(one.trainings for one in runs)))


def cells(units: Units) -> tuple[str, ...]:
    rounds = "–" if units.rounds is None else str(units.rounds)
    numbers = f"{units.seconds:.1f}", f"{units.plain:.3f}", f"{units.trainings:.1f}"
    return units.what, f"{units.networks:,}", rounds, *numbers
