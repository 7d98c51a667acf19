"""Budget: the groups for every number of networks, chosen with a slider."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tagalong._html import Html, tag
from tagalong.group._ties import LISTED

from .._labels import power_of_thousand, signed, times

if TYPE_CHECKING:
    from tagalong.group import Grouping
    from tagalong.study import Results


def budget(groupings: Mapping[int, Grouping], shown: int) -> Html:
    """The slider, what can be said of its groups, and where they are drawn."""
    n = len(groupings)
    slider = tag(
        "input", type="range", id="budget-slider", min="1", max=str(n), step="1", value=str(shown), list="budget-ticks"
    )
    return tag(
        "section",
        tag("h2", "How many networks?", id="budget-title"),
        tag(
            "p",
            "The best groups by affinity for each number of networks. Full chips are served by the network; dashed "
            "ones are only trained along because they help. More networks cost more training and more memory.",
            class_="lead",
        ),
        tag(
            "div",
            tag("label", "Networks ", tag("output", str(shown), id="budget-k"), for_="budget-slider"),
            tag("button", "−", type="button", id="budget-less", aria_label="one network less"),
            slider,
            tag("button", "+", type="button", id="budget-more", aria_label="one network more"),
            class_="slider",
        ),
        tag("p", id="budget-summary", aria_live="polite"),
        tag("div", id="budget-groups", class_="cards"),
        tag(
            "div", id="budget-curve", class_="plot", role="img", aria_label="Total affinity for each number of networks"
        ),
        id="budget",
        aria_labelledby="budget-title",
    )


def budgets_data(groupings: Mapping[int, Grouping], results: Results) -> list[dict[str, Any]]:
    """What the slider needs to know, in the order of k."""
    largest = max(abs(grouping.value) for grouping in groupings.values())
    power = power_of_thousand(largest)
    measured = any(grouping.resampled is not None for grouping in groupings.values())
    return [_data(k, grouping, power, results, measured) for k, grouping in groupings.items()]


def _data(k: int, grouping: Grouping, power: int, results: Results, measured: bool) -> dict[str, Any]:
    unit, resampled = 10.0**power, grouping.resampled
    return {
        "k": k,
        "networks": [{"serves": sorted(group.serves), "helpers": sorted(group.helpers)} for group in grouping.groups],
        "value": grouping.value / unit,
        "bound": grouping.bound / unit,
        "unit": times(power),
        "summary": _sentences(k, grouping, power, results, measured),
        "unsettled": [] if resampled is None else list(resampled.unsettled),
    }


def _sentences(k: int, grouping: Grouping, power: int, results: Results, measured: bool) -> list[str]:
    """How good, whether that is proven, how stable, what else is as good, and what training it brought."""
    unit, used = 10.0**power, len(grouping.groups)
    start = f"{used} network{'s' * (used != 1)}" + (f" (more than {used} bring nothing)" if used < k else "")
    said = [f"{start}, total affinity {grouping.value / unit:.3g}{times(power)}"]
    if grouping.status == "optimal":
        said.append("no other grouping is better (proven)")
    else:
        said.append(f"at most {grouping.bound / unit:.3g}{times(power)} is possible, {grouping.gap:.1%} more")
    if grouping.resampled is not None:
        said.append(f"the same groups in {grouping.resampled.share:.0%} of {grouping.resampled.resamples} resamples")
    elif measured:
        said.append("how stable they are was not looked at: it is for budgets that a run asks for")
    if ties := len(grouping.ties):
        said.append(f"{'at least ' * (ties == LISTED)}{ties} other{'s are' if ties > 1 else ' is'} just as good")
    trained = [line for line in results.table() if (line.method, line.budget) == ("tag", k)]
    if trained and trained[0].change is not None:
        said.append(f"trained, it changed the test losses by {signed(trained[0].change)} %")
    return said
