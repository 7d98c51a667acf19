"""The measured numbers of README and documentation, from the results of fair.py.

    python benchmarks/summary.py                 # prints them
    python benchmarks/summary.py --write-docs    # writes them into the pages, and draws the picture of the README

No number of these tables is typed into a page. A test compares the pages with the results.
"""

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from fair import BUDGETS, RULES, Case
from harness import Row, mean_and_error, replace_part, table

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "fair_results.json"
PAGES = {"README": ROOT / "README.md", "comparison": ROOT / "docs" / "comparison.md"}
PAGES["benchmarks"] = ROOT / "benchmarks" / "README.md"
PICTURE = ROOT / "docs" / "images" / "networks.svg"
FIVE = ("nhanes", "tox21", "faces", "qm9-32", "qm9-128")
EFFORT = 60
WORDS = ("no", "one", "two", "three", "four")


@dataclass(frozen=True)
class Way:
    """A way to use networks, as a line of a table.

    Attributes:
        title: how it is called in tables.
        method: its name in the results.
        effort: the number of networks that it may train, or None if it trains as many as it uses.
    """

    title: str
    method: str
    effort: int | None = None


COPIES, BEST_COPIES = Way("copies (`ensemble`)", "ensemble"), Way("best copies (`best-of`)", "best-of", EFFORT)
LARGER, GROUPS = Way("larger network (`mtl-big`)", "mtl-big"), Way("groups of a search", "groups", EFFORT)
AUTO, ONE_PASS = Way("`auto`", "auto", EFFORT), Way("`auto`, one pass", "auto, one pass", EFFORT)
TAG, HOA = Way("TAG's groups (`tag`)", "tag"), Way("HOA's groups (`hoa`)", "hoa")
ONE_NETWORK = (
    Way(f"best of {EFFORT} plain networks", "best-of", EFFORT),
    *(Way(f"`{rule}`", rule) for rule in RULES),
    Way("default network for tables", "default network"),
    Way("TabM", "TabM"),
    Way("boosting", "boosting"),
    AUTO,
)
THREE_NETWORKS = (COPIES, BEST_COPIES, LARGER, TAG, HOA, GROUPS, ONE_PASS, AUTO)
TRAINED_AGAIN = (COPIES, LARGER, TAG, HOA, GROUPS, ONE_PASS, AUTO)  # picked copies are just copies then
CURVES = {  # of the picture, with their colors
    "larger network": (LARGER, "#8a8f98"),
    "groups": (GROUPS, "#c2571a"),
    "copies": (BEST_COPIES, "#2f6fb5"),
    "auto": (AUTO, "#00796b"),
}


class Results:
    """The results of fair.py.

    Args:
        cases: the results on each problem and repetition.
    """

    def __init__(self, cases: Sequence[Case]) -> None:
        self._changes: dict[tuple[str, str, int, str], dict[int, list[Row]]] = {}
        for case in cases:
            for row in case["rows"]:
                repetitions = self._changes.setdefault((case["problem"], row["method"], row["budget"]), {})
                repetitions.setdefault(case["repetition"], []).append(row)

    def changes(self, way: Way, budget: int, problem: str, kind: str = "very") -> dict[int, float]:
        """Returns the change of the loss in each repetition, in percent."""
        repetitions = self._changes.get((problem, way.method, budget), {})
        return {
            number: 100 * row[kind]
            for number, rows in repetitions.items()
            for row in rows
            if way.effort in (None, row["effort"])
        }

    def means(self, ways: Sequence[Way], budget: int) -> list[float]:
        """Returns the mean change of each way over the five problems, in the repetitions that all ways have."""
        by_problem = []
        for problem in FIVE:
            changes = [self.changes(way, budget, problem) for way in ways]
            common = set.intersection(*map(set, changes))
            by_problem.append([mean(own[number] for number in common) for own in changes])
        return [mean(column) for column in zip(*by_problem, strict=True)]

    def differences(self, way: Way, reference: Way, budget: int, problem: str) -> list[float]:
        """Returns the differences between two ways, in pairs of the same repetition and split."""
        own, others = (self.changes(each, budget, problem) for each in (way, reference))
        return [own[number] - others[number] for number in sorted(own.keys() & others.keys())]


def show_curves(results: Results) -> str:
    """Formats the numbers of the picture."""
    rows = []
    for name, values in curves(results).items():
        cells = {f"k = {budget}": f"{values[budget]:+.1f}%".replace("-", "−") for budget in BUDGETS if budget in values}
        rows.append({"change of the test loss": name, **cells})
    return table(rows)


def curves(results: Results) -> dict[str, dict[int, float]]:
    """Returns the mean change of each curve of the picture, by number of networks."""
    values: dict[str, dict[int, float]] = {name: {} for name in CURVES}
    auto, copies = results.means((AUTO, BEST_COPIES), 1)
    values["auto"][1], values["copies"][1] = auto, copies
    values["groups"][1] = values["larger network"][1] = 0.0  # both are the plain network
    for budget in BUDGETS[1:]:
        means = results.means([way for way, _ in CURVES.values()], budget)
        for name, change in zip(CURVES, means, strict=True):
            values[name][budget] = change
    return values


def show_table(results: Results, ways: Sequence[Way], budget: int, kind: str = "very") -> str:
    """Formats the changes of each way on the five problems, and their mean if there is no gap."""
    first = "one network" if budget == 1 else f"{WORDS[budget]} networks"
    rows = []
    for way in ways:
        changes = {f"`{name}`": [*results.changes(way, budget, name, kind).values()] for name in FIVE}
        row: Row = {first: way.title} | {name: mean_and_error(own) for name, own in changes.items()}
        if all(changes.values()):
            row["mean"] = mean_and_error([mean(own) for own in changes.values()]).partition(" ")[0]
        rows.append(row)
    return table(rows)


def show_differences(results: Results) -> str:
    """Formats differences between two ways on the five problems."""
    rows = []
    for way, reference, budgets in ((AUTO, BEST_COPIES, (1, 2, 3)), (ONE_PASS, GROUPS, (2, 3, 4))):
        for budget in budgets:
            row: Row = {"difference in points": f"{way.title} − {reference.title}", "networks": budget}
            for name in FIVE:
                row[f"`{name}`"] = mean_and_error(results.differences(way, reference, budget, name))
            rows.append(row)
    return table(rows)


def show_efforts(results: Results, problems: Sequence[str]) -> str:
    """Formats the difference between `auto` and the best copies by effort: the mean over problems, and the worst."""
    rows = []
    for effort in (3, 6, 20, 60, 200):
        row: Row = {"effort": effort}
        for budget in BUDGETS:
            ways = Way("", "auto", effort), Way("", "best-of", effort)
            pairs = {name: results.differences(*ways, budget, name) for name in problems}
            means = {name: mean(own) for name, own in pairs.items() if own}
            worst = max(means, key=means.__getitem__)
            row["problems"] = len(means)
            row[f"k = {budget}"] = f"{mean_and_error([mean(means.values())])} ({worst} {mean_and_error(pairs[worst])})"
        rows.append(row)
    return table(rows)


def parts(cases: Sequence[Case]) -> dict[tuple[str, str], str]:
    """Returns what stands in the pages, by the name of the page and of its part."""
    results = Results(cases)
    problems = list(dict.fromkeys(case["problem"] for case in cases))
    return {
        ("README", "numbers"): show_curves(results),
        ("comparison", "one network"): show_table(results, ONE_NETWORK, 1),
        ("comparison", "three networks"): show_table(results, THREE_NETWORKS, 3),
        ("comparison", "trained again"): show_table(results, TRAINED_AGAIN, 3, "recipe"),
        ("comparison", "differences"): show_differences(results),
        ("benchmarks", "efforts"): show_efforts(results, problems),
    }


WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM, GRID = 720, 360, 64, 44, 128, 48, 5  # of the picture


def draw(results: Results) -> str:
    """Draws the mean change of the loss against the number of networks, as an SVG file."""
    values = curves(results)
    changes = [change for curve in values.values() for change in curve.values()]
    lowest, highest = GRID * math.floor(min(changes) / GRID), GRID * math.ceil(max(changes) / GRID)

    def x(networks: float) -> float:
        return LEFT + (networks - 1) / (max(BUDGETS) - 1) * (WIDTH - LEFT - RIGHT)

    def y(change: float) -> float:
        return TOP + (highest - change) / (highest - lowest) * (HEIGHT - TOP - BOTTOM)

    title = "Change of the test loss against one plain network, mean of five problems"
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="system-ui, sans-serif">']
    lines += [f"<title>{title}</title>", f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>']
    lines.append(_text(16, 24, title, size=15, weight=600))
    for change in range(lowest, highest + 1, GRID):
        lines.append(f'<path d="M{LEFT} {y(change):.1f}H{WIDTH - RIGHT}" stroke="#d9dce1"/>')
        label = f"{change:+d}%".replace("-", "−") if change else "0%"
        lines.append(_text(LEFT - 8, y(change) + 4, label, anchor="end"))
    lines += [_text(x(networks), HEIGHT - BOTTOM + 20, str(networks), anchor="middle") for networks in BUDGETS]
    lines.append(_text(x(2.5), HEIGHT - 8, "networks in use", anchor="middle"))

    # Curves, from the highest end to the lowest, so that no label covers another.
    label_place = -math.inf
    for name, curve in sorted(values.items(), key=lambda item: -item[1][max(BUDGETS)]):
        color = CURVES[name][1]
        points = [(x(networks), y(change)) for networks, change in sorted(curve.items())]
        line = " ".join(f"{across:.1f},{down:.1f}" for across, down in points)
        lines.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2.5"/>')
        lines += [f'<circle cx="{across:.1f}" cy="{down:.1f}" r="4" fill="{color}"/>' for across, down in points]
        label_place = max(points[-1][1], label_place + 17)
        lines.append(_text(points[-1][0] + 10, label_place + 4, name, color=color, weight=600))
    return "\n".join([*lines, "</svg>\n"])


def _text(
    x: float, y: float, words: str, *, anchor: str = "start", size: int = 13, color: str = "#3a3f47", weight: int = 400
) -> str:
    style = f'font-size="{size}" font-weight="{weight}" fill="{color}" text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{words}</text>'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write-docs", action="store_true", help="replace the numbers of README and documentation")
    options = parser.parse_args()
    cases = json.loads(RESULTS.read_text(encoding="utf-8"))
    for (page, name), content in parts(cases).items():
        print(f"{content}\n")
        if options.write_docs:
            replace_part(PAGES[page], name, content)
    if options.write_docs:
        PICTURE.write_text(draw(Results(cases)), encoding="utf-8")


if __name__ == "__main__":
    main()
