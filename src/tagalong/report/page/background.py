"""The end of the page: how to read it, what affinity is not, and how it was obtained."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from tagalong.disclaimer import GENERAL, PEOPLE, find_sensitive_tasks
from tagalong.errors import counted
from tagalong.rendering import Html, table, tag
from tagalong.study import Cost, ProblemInfo, Results, Run

METHODS = {
    "mtl": "one network for all tasks; everything is compared with it",
    "stl": "one network for each task",
    "random": "groups drawn at random: what to expect of any grouping of this size",
    "tag": "groups chosen by the affinities of one training run (Fifty et al., 2021)",
    "cs": "groups chosen by the cosine of the tasks' gradients",
    "hoa": "groups chosen by the results of all pairs of tasks, each trained",
    "optimal": "every set of tasks trained, groups chosen on validation data",
    "oracle": "every set of tasks trained, groups chosen on test data: no method, a bound",
    "uw": "one network, losses weighted by learnt uncertainties",
    "gradnorm": "one network, losses weighted so that gradients stay in balance",
    "pcgrad": "one network, conflicting gradients projected",
    "auto": "networks that affinities and what was learnt so far suggest, trained and confirmed on validation data",
    "chosen": "the best groups among the networks there were, chosen on validation data",
}
READING = (
    (
        "Affinity",
        "Take a step on one task alone, and see what share of another task's loss it removes: that is the affinity of "
        "the first onto the second. Positive helps, negative hurts, and the two directions differ. It is the average "
        "over the measured steps of one training run of all tasks, ± its standard error.",
    ),
    (
        "Groups",
        "For a number of networks, the groups are those with the highest total affinity. A network serves the tasks "
        "whose answers come from it, and may train others along that help. Stability is how often resampled "
        "measurements lead to the same groups: below a half, other groups are about as likely.",
    ),
    (
        "Verdict",
        "Groups are chosen on validation data and judged on test data. Grouping is worth it only if its interval lies "
        "below zero, with the noise of seeds, of test rows and of having tried several groupings counted in.",
    ),
)
UNITS = ((3600, "hours"), (60, "minutes"), (1, "seconds"))
PARTS = ("train", "val", "test")
UNREPEATABLE = ("", "-c", "ipykernel_launcher.py")  # what a prompt, `python -c` and a notebook are called


def how_to_read(methods: Iterable[str]) -> Html:
    """The three ideas, and the methods that were compared."""
    ideas = [item for name, said in READING for item in (tag("dt", name), tag("dd", said))]
    known = [(name, METHODS[name]) for name in dict.fromkeys(methods) if name in METHODS]
    listed = [item for name, said in known for item in (tag("dt", name), tag("dd", said))]
    return tag(
        "section",
        tag("h2", "How to read this", id="reading-title"),
        tag("dl", *ideas),
        tag("details", tag("summary", "The methods"), tag("dl", *listed)) if listed else None,
        id="reading",
        aria_labelledby="reading-title",
    )


def handle_with_care(tasks: Iterable[str]) -> Html:
    """What affinity is not; tasks about people are named."""
    found = find_sensitive_tasks(tasks)
    named = "; ".join(f"{trait}: {', '.join(names)}" for trait, names in found.items())
    return tag(
        "aside",
        tag("h2", "Handle with care", id="care-title"),
        tag("p", GENERAL),
        tag("p", PEOPLE.format(named=named)) if found else None,
        id="care",
        aria_labelledby="care-title",
    )


def obtained(run: Run) -> Html:
    """Everything a reader needs to judge and to repeat it."""
    results, settings = run.results, run.results.settings
    groups = [
        ("Data", _data(results.problem)),
        ("Asked", _asked(settings)),
        ("Recipe", _pairs(settings.get("recipe") or {})),
        ("Affinity", _measured(run)),
        ("Cost", spent(results)),
        ("Versions", _pairs({**(settings.get("versions") or {}), "machine": settings.get("machine")})),
    ]
    facts = [item for name, said in groups if said for item in (tag("dt", name), tag("dd", said))]
    return tag(
        "section",
        tag("h2", "How it was obtained", id="obtained-title"),
        tag("dl", *facts),
        _labels(results.problem),
        tag("h3", "To repeat it"),
        tag("pre", tag("code", "\n".join(commands(run))), tabindex="0", aria_label="Commands"),
        id="obtained",
        aria_labelledby="obtained-title",
    )


def _data(problem: ProblemInfo) -> str:
    rows = ", ".join(f"{problem.rows[part]:,} {part}" for part in PARTS if part in problem.rows)
    parts = [problem.name + (f", rows: {rows}" if rows else ""), *problem.notes]
    if problem.fingerprint:
        parts.append(f"fingerprint {problem.fingerprint}")
    return "; ".join(parts)


def _asked(settings: Mapping[str, Any]) -> str:
    names = ("methods", "budgets", "seeds", "confirming_seeds", "options", "device", "executor", "git")
    return _pairs({name: settings.get(name) for name in names})


def _measured(run: Run) -> str:
    said = [
        f"{name}: {_pairs({**affinity.settings, 'measured steps': len(affinity.steps)})}"
        for name, affinity in run.affinities.items()
    ]
    return "; ".join(said)


def _pairs(values: Mapping[str, Any]) -> str:
    kept = {name: value for name, value in values.items() if value not in (None, [], {}, "")}
    return ", ".join(f"{name} {_plain(value)}" for name, value in kept.items())


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_plain, value))
    if isinstance(value, Mapping):
        return "{" + _pairs(value) + "}"
    return {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def spent(results: Results) -> str:
    """What all networks of the run took; without that, what its methods took, each counted on its own."""
    known = results.settings.get("spent")
    whole = Cost(**known) if known else _counted(results)
    parts = [
        f"{counted(whole.networks, 'network')} trained" if whole.networks else "",
        f"{counted(whole.steps, 'step')} of the optimiser" if whole.steps else "",
        _duration(whole.seconds),
    ]
    said = ", ".join(part for part in parts if part)
    return said if known or not said else f"at most {said}; networks that methods share are counted for each"


def _counted(results: Results) -> Cost:
    deciding = {(record.method, record.seed): record.deciding for record in results.records}
    training = (record.training for record in results.records if record.groups)
    return sum([*training, *deciding.values()], Cost())


def _duration(seconds: float) -> str:
    """Seconds as people say them.

    >>> _duration(95), _duration(7300)
    ('1.6 minutes of computing', '2 hours of computing')
    """
    if not seconds:
        return ""
    size, name = next((unit for unit in UNITS if seconds >= unit[0]), UNITS[-1])
    return f"{seconds / size:.2g} {name} of computing"


def commands(run: Run) -> list[str]:
    """What was typed, and what makes this page again."""
    given = [str(part) for part in run.results.settings.get("command") or []]
    first = _program(given) if given else []
    return [*([shlex.join(first)] if first else []), shlex.join(["tagalong", "report", str(run.folder)])]


def _program(given: Sequence[str]) -> list[str]:
    """`tagalong …` for the command line, `python script.py …` for scripts; nothing for what cannot be typed again.

    >>> _program(["/usr/bin/tagalong", "demo"]), _program(["train.py"]), _program(["-c"])
    (['tagalong', 'demo'], ['python', 'train.py'], [])
    """
    path = PurePath(given[0])
    own = path.stem == "tagalong" or (path.name == "__main__.py" and path.parent.name == "tagalong")
    if own:
        return ["tagalong", *given[1:]]
    return [] if path.name in UNREPEATABLE else ["python", *given]


def _labels(problem: ProblemInfo) -> Html | None:
    """The labels of each task, and how many are missing."""
    if not problem.labels:
        return None
    rows = [
        [
            task,
            problem.kinds.get(task, ""),
            problem.errors.get(task, ""),
            *(_share(problem, part, task) for part in PARTS),
        ]
        for task in problem.tasks
    ]
    headings = ["task", "kind", "error", *(f"labels {part}" for part in PARTS)]
    made = table(headings, rows, caption="Tasks and their labels")
    region = tag("div", made, class_="scroll", tabindex="0", role="region", aria_label="Tasks and their labels")
    return tag("details", tag("summary", f"The {len(problem.tasks)} tasks and their labels"), region)


def _share(problem: ProblemInfo, part: str, task: str) -> str:
    labels, rows = problem.labels.get(part, {}).get(task), problem.rows.get(part)
    if labels is None:
        return ""
    return f"{labels:,}" + (f" ({1 - labels / rows:.0%} missing)" if rows and labels < rows else "")
