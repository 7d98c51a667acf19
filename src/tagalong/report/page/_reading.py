"""How to read the page, what the methods are, and what affinity is not."""

from __future__ import annotations

from collections.abc import Iterable

from tagalong._caution import GENERAL, PEOPLE, sensitive
from tagalong._html import Html, tag

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
    found = sensitive(tasks)
    named = "; ".join(f"{trait}: {', '.join(names)}" for trait, names in found.items())
    return tag(
        "aside",
        tag("h2", "Handle with care", id="care-title"),
        tag("p", GENERAL),
        tag("p", PEOPLE.format(named=named)) if found else None,
        id="care",
        aria_labelledby="care-title",
    )
