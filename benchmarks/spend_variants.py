"""The variants of `auto` that `spend.py` compares: with one part left out, or replaced by chance."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tagalong.affinity import Affinity
from tagalong.learn import Job
from tagalong.study import Backend, Method, make_method
from tagalong.study.search import spending
from tagalong.study.search.search import Round, SearchResult, search
from tagalong.study.search.trial import Trial

ONE_PASS_EFFORTS, ABLATION_EFFORTS, HINT_EFFORTS = (20, 60), (60,), (20, 60)
LEAST_TABM_EFFORT = 80  # that pays for a TabM network
ABLATIONS: dict[str, dict[str, Any]] = {
    "auto without sets": {"sets": False},
    "auto without teaching": {"teach": False},
    "auto without mixtures": {"mixtures": False},
    "auto without wider networks": {"wide": False},
    "copies taught by copies": {"sets": False, "wide": False},
}
RANDOM_HINTS, RANDOM_SETS = "auto with random hints", "auto with random sets"


@dataclass(frozen=True)
class Variant:
    """A variant of `auto`.

    Attributes:
        name: its name.
        effort: the effort that it is given.
        options: the options that differ from the defaults.
    """

    name: str
    effort: int
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def method(self) -> Method:
        """The method."""
        return make_method("auto", {"auto": {"effort": self.effort, **self.options}})


def variants(options: argparse.Namespace) -> list[Variant]:
    """Returns the variants to compare."""
    found = [] if options.only_ablations else [Variant("auto", effort) for effort in options.efforts]
    if not options.only_ablations:
        some = [effort for effort in options.efforts if effort in ONE_PASS_EFFORTS]
        found += [Variant("auto, one pass", effort, {"passes": 1}) for effort in some]
    if options.ablations or options.only_ablations:
        some = [effort for effort in options.efforts if effort in ABLATION_EFFORTS]
        found += [Variant(name, effort, given) for name, given in ABLATIONS.items() for effort in some]
        found += [Variant(RANDOM_SETS, effort) for effort in some]
        some = [effort for effort in options.efforts if effort in HINT_EFFORTS]
        found += [Variant("auto without hints", effort, {"affinity": False}) for effort in some]
        found += [Variant(RANDOM_HINTS, effort) for effort in some]
        if options.base == "default":
            large = [effort for effort in options.efforts if effort >= LEAST_TABM_EFFORT]
            found += [Variant("auto without TabM", effort, {"tabm": False}) for effort in large]
    return found


def shuffle_hints(affinity: Affinity, seed: int) -> Affinity:
    """Returns an affinity whose tasks have exchanged their names, so that it says nothing about these tasks."""
    order = np.random.default_rng(seed).permutation(len(affinity.tasks))
    return Affinity.from_matrix(affinity.mean[np.ix_(order, order)], affinity.tasks)


def search_or_draw(
    backend: Backend, budgets: Sequence[int], effort: float, seeds: Sequence[int], **given: Any
) -> SearchResult:
    """Searches for sets of tasks, or draws them at random if the backend says so."""
    if not getattr(backend, "draws_sets", False):
        return search(backend, budgets, effort, seeds, **given)
    random, tasks = np.random.default_rng(seeds[0]), list(backend.tasks)
    trials: dict[Trial, Job] = {}
    while len(trials) < round(effort) - len(seeds):
        size = int(random.integers(2, len(tasks))) if len(tasks) > 2 else 1
        chosen = frozenset(random.choice(tasks, size, replace=False).tolist())
        trial = Trial(chosen, seeds[len(trials) % len(seeds)])
        trials[trial] = backend.job(trial.tasks, trial.seed)
    results = backend.networks(trials.values(), "networks for random sets", diverged=True)
    found = {trial: results[job] for trial, job in trials.items()}
    step = Round(found, dict.fromkeys(found, 1.0), effort, {})
    return SearchResult({}, (step,), effort)


def allow_random_sets() -> None:
    """Lets `auto` draw sets of tasks with backends that have a true `draws_sets`."""
    spending.search = search_or_draw
