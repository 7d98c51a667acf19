"""Plans which networks to train elsewhere: what to compare, and which networks settle most."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput, as_tuple, collect, is_positive_integer, raise_problems
from tagalong.files import checksum
from tagalong.learn import Job

from .methods import AutoMethod, Ensemble, Method, read_effort
from .study_request import Options, StudyRequest, check_options, check_request, with_effort

# The methods that use measured affinities, with the estimators that are meant for them.
ESTIMATORS = {"tag": ("lookahead", "gradient"), "cs": ("cosine", "cosine_kernels", "centered_cosine")}
SCREENING_SHARE = 0.5  # of a limited number of runs, to find the best way; the others judge it
Affinities = Affinity | Sequence[Affinity] | Mapping[str, Affinity] | None
Network = tuple[tuple[str, ...], int]  # the tasks and the seed of a network


@dataclass(frozen=True)
class TrainingPlan:
    """The networks to train next.

    Attributes:
        networks: the tasks and seed of each network. All of them can be trained at the same time; those that settle
            most come first.
        round: the number of this round, from 1.
        rounds: the number of rounds that are expected in all. Later rounds depend on the results of earlier ones.
        trained: the number of networks whose results are known.
        methods: the names of the methods to compare, which always include `mtl`.
    """

    networks: tuple[Network, ...]
    round: int
    rounds: int
    trained: int
    methods: tuple[str, ...]


@dataclass(frozen=True)
class PlanRequest:
    """What to compare with networks that are trained elsewhere.

    Attributes:
        study: the methods, budgets and seeds.
        affinities: the measured affinities by the method that uses them ("tag", "cs" or "auto").
        options: the options of each method.
        runs: the most networks to train, or None if there is no limit.
        screening: whether the runs are too few for all seeds, so that one seed chooses.
    """

    study: StudyRequest
    affinities: Mapping[str, Affinity] = field(default_factory=dict)
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    runs: int | None = None
    screening: bool = False

    @property
    def digest(self) -> str:
        """What tells this request from others."""
        methods = [method.name for method in self.study.methods]
        means = {name: affinity.mean.tolist() for name, affinity in self.affinities.items()}
        parts = [methods, self.study.budgets, self.study.seeds, dict(self.options), self.runs, means]
        return checksum(repr(parts).encode())

    @property
    def limit(self) -> float:
        """The most networks to train."""
        return math.inf if self.runs is None else self.runs


class Comparison(NamedTuple):
    """Networks that settle something together: how good a way of grouping is with one seed.

    Attributes:
        seed: the place of the seed in the order of all seeds.
        networks: the networks. A single one is the baseline of all other comparisons.
    """

    seed: int
    networks: Sequence[Job]


def check_plan(
    tasks: Sequence[str],
    affinity: Affinities,
    budgets: Sequence[int] | None,
    methods: Sequence[str | Method] | None,
    seeds: int | Sequence[int],
    options: Options | None,
    runs: int | None,
    averages: bool,
) -> PlanRequest:
    """Returns the validated arguments of `ExternalStudy.plan`, or raises an error that lists every problem.

    If `averages` is False, methods that average answers are rejected, since only losses will be known.
    """
    check_options(options)
    problems: list[InvalidInput] = []
    by_method = collect(problems, _affinities_by_method, affinity) or {}
    if methods is None:
        usual = [method for method in ESTIMATORS if method in by_method]
        methods = ["stl", *(usual or ["hoa"])]
    chosen = collect(problems, as_tuple, methods, "methods", "names", "['stl', 'tag']") or ()
    if not chosen and not problems:
        problems.append(InvalidInput("methods", "must name at least one method", "none"))
    if runs is not None and not is_positive_integer(runs):
        problems.append(InvalidInput("runs", "must be a positive integer", repr(runs)))
        runs = None
    if runs is not None and not any("effort" in given for given in (options or {}).values()):
        searching = [name for name in chosen if name in ("auto", "best-of")]
        effort = max(1, math.floor(runs * SCREENING_SHARE))
        options = with_effort(options, effort, searching) if searching else options
    if "auto" in chosen and "cs" not in by_method and "auto" not in by_method:  # which cannot be measured here
        options = {**(options or {}), "auto": {**(options or {}).get("auto", {}), "affinity": False}}
    used = {method: given for method, given in by_method.items() if method in chosen}
    if "auto" in chosen and "cs" in by_method:
        used["cs"] = by_method["cs"]
    for method in ESTIMATORS:
        if method in chosen and method not in used:
            expected = f"must include one measured with {' or '.join(ESTIMATORS[method])} for {method!r}"
            hint = f"measure it, or remove {method!r}"
            problems.append(InvalidInput("affinity", expected, ", ".join(map(repr, by_method)) or "none", hint))
    for method, given in used.items():
        if lacking := [task for task in tasks if task not in given.tasks]:
            missing = f"none for {', '.join(map(repr, lacking))}"
            problems.append(InvalidInput("affinity", f"must have values for every task of {method!r}", missing))
    study = collect(problems, check_request, tasks, chosen or ("mtl",), budgets, seeds, options)
    raise_problems(problems)
    for method in study.methods:
        hint = "use Study, which trains them"
        if method.rule != "plain" or type(method).width is not Method.width:
            expected = "must not require balancing rules or wider networks if networks are trained elsewhere"
            raise InvalidInput("methods", expected, repr(method.name), hint)
        if isinstance(method, Ensemble) and not averages:
            expected = "must not average the answers of networks if only their losses are known"
            hint = "pass `targets`, and tell predictions instead of losses"
            raise InvalidInput("methods", expected, repr(method.name), hint)
        if isinstance(method, AutoMethod) and method.screen is not None:
            raise InvalidInput("`options`: `screen`", "must be None if networks are trained elsewhere", "", hint)
        if isinstance(method, AutoMethod) and read_effort(method.effort).trainings is None:
            raise InvalidInput("effort", "must be a number of training runs if networks are trained elsewhere")
    return PlanRequest(study, used, options or {}, runs)


def _affinities_by_method(affinity: Affinities) -> dict[str, Affinity]:
    """Returns the affinity of each method: gradient cosines are for `cs`, all others for `tag`."""
    if isinstance(affinity, Mapping):
        if unknown := [name for name in affinity if name not in (*ESTIMATORS, "auto")]:
            raise InvalidInput("affinity", "must only have the keys 'tag', 'cs' and 'auto'", repr(unknown[0]))
        given = list(affinity.items())
    else:
        listed = (affinity,) if isinstance(affinity, Affinity) else affinity or ()
        if not isinstance(listed, Sequence) or not all(isinstance(one, Affinity) for one in listed):
            expected = "must be an Affinity, a list or mapping of Affinities, or None"
            raise InvalidInput("affinity", expected, repr(affinity), "see Affinity.from_matrix")
        given = [(method_of(one), one) for one in listed]
    by_method = dict(given)
    if len(by_method) < len(given):
        estimators = ", ".join(repr(one.settings.get("estimator")) for _, one in given)
        raise InvalidInput("affinity", "must contain one affinity each for 'tag' and 'cs'", estimators, "choose one")
    return by_method


def method_of(affinity: Affinity) -> str:
    """Returns the method that uses this affinity: "cs" for gradient cosines, otherwise "tag"."""
    return "cs" if affinity.settings.get("estimator") in ESTIMATORS["cs"] else "tag"


def order_networks(
    comparisons: Sequence[Comparison],
    trained: Collection[Job],
    runs: float = math.inf,
    share: float = SCREENING_SHARE,
) -> list[Job]:
    """Returns the networks that are still missing, those that settle most first.

    The comparisons of the first seed come first. Among those of a seed, the one that lacks the fewest networks is
    settled next, since each run then settles as much as it can. A comparison is left out if it does not fit into the
    limit: half of a comparison settles nothing. Apart from the first one, comparisons of several networks may use only
    a share of the runs, so that the others can judge the best of them.

    Args:
        comparisons: what to settle.
        trained: the networks whose results are known.
        runs: the most networks to train in all, including those that are trained already.
        share: the share of the runs for comparisons of several networks.

    Example:
        >>> pairs = [Job(("a", "b"), 0), Job(("c", "d"), 0)]
        >>> alone = [Job((task,), 0) for task in "abcd"]
        >>> comparisons = [Comparison(0, alone), Comparison(0, pairs), Comparison(0, [Job(("a", "b", "c", "d"), 0)])]
        >>> ["+".join(job.tasks) for job in order_networks(comparisons, [], runs=8)]
        ['a+b+c+d', 'a+b', 'c+d']
    """
    known, chosen = set(trained), list[Job]()
    waiting, settled = list(comparisons), 0
    while waiting:
        missing = [[job for job in dict.fromkeys(one.networks) if job not in known] for one in waiting]
        place = min(range(len(waiting)), key=lambda at: (waiting[at].seed, len(missing[at]), at))
        comparison, jobs = waiting.pop(place), missing[place]
        is_baseline = len(comparison.networks) == 1
        limit = runs if is_baseline or not settled else runs * share
        if not jobs or len(known) + len(jobs) <= limit:
            settled += not is_baseline
            known.update(jobs)
            chosen += jobs
    return chosen
