"""The end of the page: how to read it, what affinity does not mean, and how the results were obtained."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from tagalong.affinity import CAUTION
from tagalong.errors import pluralize
from tagalong.rendering import Html, table, tag
from tagalong.study import Cost, ProblemInfo, Results, Run

from .usage import code_block

METHOD_DESCRIPTIONS = {
    "mtl": "one network for all tasks; everything is compared with it",
    "stl": "one network for each task",
    "random": "groups drawn at random: what to expect from any grouping of this size",
    "tag": "groups chosen by the affinities measured in one training run (Fifty et al., 2021)",
    "cs": "groups chosen by the cosine similarity of the tasks' gradients",
    "hoa": "groups chosen by the results of networks trained on every pair of tasks",
    "optimal": "every set of tasks trained, groups chosen on validation data",
    "oracle": "every set of tasks trained, groups chosen on test data: a bound, not a method",
    "uw": "one network, losses weighted by learned uncertainties",
    "gradnorm": "one network, losses weighted to keep gradients balanced",
    "pcgrad": "one network, conflicts between gradients removed by projection",
    "auto": "the best way found on validation data to spend an effort on copies, groups and networks taught by others",
    "ensemble": "copies of the network for all tasks, whose answers are averaged",
    "best-of": "the best of several copies on validation data, whose answers are averaged",
    "constant": "the mean or base rate of the training labels, without a network: what learning nothing gives",
    "boosting": "gradient-boosted trees for each task, without a network: a reference for tables, never recommended",
    "chosen": "the best groups of already trained networks, chosen on validation data",
}
READING_GUIDE = (
    (
        "Affinity",
        "The affinity of one task onto another is the fraction by which a training step on the first task alone lowers "
        "the other task's loss. A positive affinity helps, a negative one hurts, and the two directions differ. The "
        "values are averages over the measured steps of one training run of all tasks, ± their standard errors.",
    ),
    (
        "Groups",
        "For each number of networks, the groups are those with the highest total affinity. A network serves the tasks "
        "whose predictions come from it, and may also train others because they help. Stability is how often "
        "resampled measurements lead to the same groups; below 50%, other groups are about as likely.",
    ),
    (
        "Verdict",
        "Networks are chosen on validation data and judged on test data. They are worth it only if the confidence "
        "interval of the change of these very networks, which accounts for the noise of test rows, lies below zero. "
        "Whether groups matter is judged by the recipe: the same groups trained with several seeds. Its interval "
        "accounts for the noise of seeds and test rows, and for the number of groupings that were tried.",
    ),
)
TIME_UNITS = ((3600, "hours"), (60, "minutes"), (1, "seconds"))
SPLITS = ("train", "val", "test")
INTERACTIVE_PROGRAMS = (
    "",
    "-c",
    "ipykernel_launcher.py",
)  # program names in a prompt, in `python -c` and in a notebook


def reading_section(methods: Iterable[str]) -> Html:
    """Explains affinities, groups, the verdict, and the methods that were compared."""
    ideas = [item for name, text in READING_GUIDE for item in (tag("dt", name), tag("dd", text))]
    known = [(name, METHOD_DESCRIPTIONS[name]) for name in dict.fromkeys(methods) if name in METHOD_DESCRIPTIONS]
    explained = [item for name, text in known for item in (tag("dt", name), tag("dd", text))]
    return tag(
        "section",
        tag("h2", "How to read this page", id="reading-title"),
        tag("dl", *ideas),
        tag("details", tag("summary", "The methods"), tag("dl", *explained)) if explained else None,
        id="reading",
        aria_labelledby="reading-title",
    )


def disclaimer_section() -> Html:
    """Explains what affinity does not mean."""
    return tag(
        "aside",
        tag("h2", "Handle with care", id="care-title"),
        tag("p", CAUTION),
        id="care",
        aria_labelledby="care-title",
    )


def provenance_section(run: Run) -> Html:
    """Returns the details that readers need to assess and reproduce the run."""
    results, settings = run.results, run.results.settings
    groups = [
        ("Data", _describe_data(results.problem)),
        ("Settings", _format_settings(settings)),
        ("Recipe", _format_pairs(settings.get("recipe") or {})),
        ("Affinity", _describe_measurements(run)),
        ("Cost", total_cost(results)),
        ("Versions", _format_pairs({**(settings.get("versions") or {}), "machine": settings.get("machine")})),
    ]
    facts = [item for name, text in groups if text for item in (tag("dt", name), tag("dd", text))]
    return tag(
        "section",
        tag("h2", "How this was obtained", id="obtained-title"),
        tag("dl", *facts),
        _label_table(results),
        tag("h3", "Repeat the run"),
        code_block("\n".join(commands(run)), "commands", "repeat-commands"),
        id="obtained",
        aria_labelledby="obtained-title",
    )


def _describe_data(problem: ProblemInfo) -> str:
    rows = ", ".join(f"{problem.rows[part]:,} {part}" for part in SPLITS if part in problem.rows)
    parts = [problem.name + (f", rows: {rows}" if rows else ""), *problem.notes]
    if problem.fingerprint:
        parts.append(f"fingerprint {problem.fingerprint}")
    return "; ".join(parts)


def _format_settings(settings: Mapping[str, Any]) -> str:
    names = ("methods", "budgets", "seeds", "confirming_seeds", "options", "device", "executor", "git")
    return _format_pairs({name: settings.get(name) for name in names})


def _describe_measurements(run: Run) -> str:
    parts = [
        f"{name}: {_format_pairs({**affinity.settings, 'measured steps': len(affinity.steps)})}"
        for name, affinity in run.affinities.items()
    ]
    return "; ".join(parts)


def _format_pairs(values: Mapping[str, Any]) -> str:
    kept = {name: value for name, value in values.items() if value not in (None, [], {}, "")}
    return ", ".join(f"{name} {_format_value(value)}" for name, value in kept.items())


def _format_value(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_format_value, value))
    if isinstance(value, Mapping):
        return "{" + _format_pairs(value) + "}"
    return {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def total_cost(results: Results) -> str:
    """Returns the cost of all networks in the run or, if it is unknown, the sum of the methods' costs."""
    known = results.settings.get("spent")
    total = Cost(**known) if known else _sum_over_methods(results)
    parts = [
        f"{pluralize(total.networks, 'network')} trained" if total.networks else "",
        pluralize(total.steps, "optimizer step") if total.steps else "",
        _format_duration(total.seconds),
    ]
    text = ", ".join(part for part in parts if part)
    return text if known or not text else f"at most {text}; networks shared by methods are counted once per method"


def _sum_over_methods(results: Results) -> Cost:
    deciding = {(record.method, record.seed): record.deciding for record in results.records}
    training = (record.training for record in results.records if record.groups)
    return sum([*training, *deciding.values()], Cost())


def _format_duration(seconds: float) -> str:
    """Formats seconds in a convenient unit.

    Example:
        >>> _format_duration(95), _format_duration(7300)
        ('1.6 minutes of compute', '2 hours of compute')
    """
    if not seconds:
        return ""
    size, name = next((unit for unit in TIME_UNITS if seconds >= unit[0]), TIME_UNITS[-1])
    return f"{seconds / size:.2g} {name} of compute"


def commands(run: Run) -> list[str]:
    """Returns the command that started the run, if it can be repeated, and the command that writes this page."""
    arguments = [str(part) for part in run.results.settings.get("command") or []]
    first = _command_line(arguments) if arguments else []
    return [*([shlex.join(first)] if first else []), shlex.join(["tagalong", "report", str(run.folder)])]


def _command_line(arguments: Sequence[str]) -> list[str]:
    """Returns the command as `tagalong …` or `python script.py …`, or an empty list for interactive use.

    Example:
        >>> _command_line(["/usr/bin/tagalong", "demo"]), _command_line(["train.py"]), _command_line(["-c"])
        (['tagalong', 'demo'], ['python', 'train.py'], [])
    """
    path = PurePath(arguments[0])
    own = path.stem == "tagalong" or (path.name == "__main__.py" and path.parent.name == "tagalong")
    if own:
        return ["tagalong", *arguments[1:]]
    return [] if path.name in INTERACTIVE_PROGRAMS else ["python", *arguments]


def _label_table(results: Results) -> Html | None:
    """Returns a table with the number of labels and the percentage of missing labels for each task."""
    problem, unlearnt = results.problem, results.verdict().unlearnt
    if not problem.labels:
        return None
    rows = [
        [
            f"{task} (not learnt)" if task in unlearnt else task,
            problem.kinds.get(task, ""),
            problem.errors.get(task, ""),
            *(_label_count(problem, part, task) for part in SPLITS),
        ]
        for task in problem.tasks
    ]
    headings = ["task", "kind", "error", *(f"labels {part}" for part in SPLITS)]
    element = table(headings, rows, caption="Tasks and their labels")
    region = tag("div", element, class_="scroll", tabindex="0", role="region", aria_label="Tasks and their labels")
    return tag("details", tag("summary", f"The {len(problem.tasks)} tasks and their labels"), region)


def _label_count(problem: ProblemInfo, split: str, task: str) -> str:
    labels, rows = problem.labels.get(split, {}).get(task), problem.rows.get(split)
    if labels is None:
        return ""
    return f"{labels:,}" + (f" ({1 - labels / rows:.0%} missing)" if rows and labels < rows else "")
