"""The measured numbers of README and documentation, from the results of fair.py, spend.py and no_trace.py.

    python benchmarks/summary.py                 # prints them
    python benchmarks/summary.py --write-docs    # writes them into all pages, and draws the picture of the README

No number is typed into a page. A sentence that claims something, such as "better than groups", is written only if the
results support it; otherwise, the command fails and says which sentence must be reworded. A test compares the pages
with the results.
"""

import argparse
import math
import re
import statistics
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import fair
import no_trace
import spend
from fair import _with_error
from markdown import replace_part, table

ROOT = Path(__file__).parent.parent
FAIR, SPEND = (ROOT / "benchmarks" / f"{name}_results.json" for name in ("fair", "spend"))
README, COMPARISON = ROOT / "README.md", ROOT / "docs" / "comparison.md"
PICTURE = ROOT / "docs" / "images" / "networks.svg"
FIVE = ("nhanes", "tox21", "faces", "qm9-32", "qm9-128")
EFFORT = 60
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM, GRID = 720, 360, 64, 44, 128, 48, 5  # of the picture
WORDS = ("no", "one", "two", "three", "four", "five")


class Outdated(SystemExit):
    """Raised if the results no longer support a sentence."""

    def __init__(self, sentence: str, reason: str) -> None:
        super().__init__(f"reword the sentence in `{sentence}` of benchmarks/summary.py: {reason}")


@dataclass(frozen=True)
class Way:
    """A way to use networks, as a line of a table.

    Attributes:
        title: how it is called in tables.
        methods: its names in the results; there are several if it was renamed.
        effort: the number of networks that it may train, or None if it trains as many as it uses.
        searched: whether it is measured by `spend.py`, and not by `fair.py`.
    """

    title: str
    methods: tuple[str, ...]
    effort: int | None = None
    searched: bool = False


COPIES = Way("copies (`ensemble`)", ("ensemble",))
BEST_COPIES = Way("best copies (`best-of`)", ("best-of",), EFFORT)
LARGER = Way("larger network (`mtl-big`)", ("mtl-big",))
GROUPS = Way("groups of a search", ("auto", fair.GROUP_SEARCH), EFFORT)
AUTO = Way("`auto`", ("auto",), EFFORT, searched=True)
ONE_PASS = Way("`auto`, one pass", ("auto, one pass",), EFFORT, searched=True)
AUTO_COPIES = Way("best copies, in the repetitions of `auto`", ("best-of",), EFFORT, searched=True)
RULES = tuple(Way(f"`{rule}`", (rule,)) for rule in fair.RULES)
ONE_NETWORK = (
    Way(f"best of {EFFORT} plain networks", ("best-of",), EFFORT),
    *RULES,
    Way("default network for tables", ("default network",)),
    Way("TabM", ("TabM",)),
    Way("boosting", ("boosting",)),
    AUTO,
)
THREE_NETWORKS = (
    COPIES,
    BEST_COPIES,
    LARGER,
    Way("TAG's groups (`tag`)", ("tag",)),
    Way("HOA's groups (`hoa`)", ("hoa",)),
    GROUPS,
    ONE_PASS,
    AUTO,
)
TRAINED_AGAIN = tuple(way for way in THREE_NETWORKS if way is not BEST_COPIES)  # picked copies are just copies then


CURVES = {  # of the picture, with their colors
    "larger network": (LARGER, "#8a8f98"),
    "groups": (GROUPS, "#c2571a"),
    "copies": (BEST_COPIES, "#2f6fb5"),
    "auto": (AUTO, "#00796b"),
}


@dataclass(frozen=True)
class Measured:
    """All results.

    Attributes:
        fair: the results of `fair.py`.
        spend: the results of `spend.py`.
    """

    fair: Sequence[fair.CaseResult]
    spend: Sequence[spend.SpendResult]

    @classmethod
    def read(cls, compared: Path = FAIR, searched: Path = SPEND) -> "Measured":
        """Reads the saved results."""
        return cls(fair.read_results(compared), spend.read(searched))

    def changes(self, way: Way, budget: int, problem: str, kind: str = "very") -> dict[int, float]:
        """Returns the change of the loss in each repetition, in percent."""
        cases = self.spend if way.searched else self.fair
        rows = [(case.repetition, row) for case in cases if case.problem == problem for row in _rows(case)]
        return {
            repetition: 100 * getattr(row, kind)
            for repetition, row in rows
            if row.method in way.methods and row.budget == budget and way.effort in (None, row.effort)
        }

    def compare(self, ways: Sequence[Way], budget: int) -> "Comparison":
        """Returns the mean changes of several ways, over the repetitions in which all of them were measured."""
        found = {}
        for problem in FIVE:
            changes = [self.changes(way, budget, problem) for way in ways]
            common = set.intersection(*(set(one) for one in changes))
            if common:
                found[problem] = [statistics.mean(one[number] for number in common) for one in changes]
        if not found:
            names = " and ".join(f'"{way.title}"' for way in ways)
            raise SystemExit(f"no problem has results of both {names} with {WORDS[budget]} networks")
        return Comparison(found)


def _rows(case: fair.CaseResult | spend.SpendResult) -> Sequence[fair.Row | spend.Outcome]:
    """Returns the results of a case; `spend.py` keeps those of the best copies in another form."""
    if isinstance(case, fair.CaseResult):
        return case.all_rows
    copies = [fair.Row("best-of", *map(int, key.split()), change, change) for key, change in case.best_of.items()]
    return [*case.outcomes, *copies]


@dataclass(frozen=True)
class Comparison:
    """The mean changes of several ways on the problems on which all of them were measured, in percent."""

    by_problem: dict[str, list[float]]

    @property
    def means(self) -> list[float]:
        """The mean over problems of each way."""
        return [statistics.mean(changes) for changes in zip(*self.by_problem.values(), strict=True)]

    def __str__(self) -> str:
        count = len(self.by_problem)
        return f"{WORDS[count]} problem{'s' * (count != 1)}"


def show_table(results: Measured, ways: Sequence[Way], budget: int, kind: str = "very") -> str:
    """Formats the changes of each way on the five problems, and their mean if there is no gap."""
    lines, counts = [], []
    for way in ways:
        found = [list(results.changes(way, budget, name, kind).values()) for name in FIVE]
        mean = _with_error([statistics.mean(map(statistics.mean, found))]) if all(found) else ""
        if any(found):
            lines.append([way.title, *map(_with_error, found), mean])
            counts.append([len(changes) for changes in found])
    lines.append(["repetitions", *map(_range, zip(*counts, strict=True)), ""])
    first = "one network" if budget == 1 else f"{WORDS[budget]} networks"
    columns = [first, *(f"`{name}`" for name in FIVE), "mean"]
    without_mean = all(not line[-1] for line in lines)
    return table(columns[:-1], [line[:-1] for line in lines]) if without_mean else table(columns, lines)


def _range(counts: Iterable[int]) -> str:
    numbers = [number for number in counts if number]
    return "–".join(str(number) for number in sorted({min(numbers), max(numbers)})) if numbers else ""


def show_one_network(results: Measured) -> str:
    """Returns the statement about one network. It costs as much in use as a plain one, unless it is larger."""
    found = results.compare((AUTO, AUTO_COPIES), 1)
    auto, picked = found.means
    if auto >= min(picked, 0):
        raise Outdated("show_one_network", f"one network of `auto` {auto:.1f}%, the best plain network {picked:.1f}%")
    changes = [own for own, _ in found.by_problem.values()]
    pools = [row.pool for case in results.spend if case.problem in FIVE for row in case.outcomes if _is_one(row)]
    larger = sum(pool not in ("copies", "taught", "all") for pool in pools)
    title = "One network, better" if larger else "One network, better at the same cost in use"
    note = f" In {larger} of {len(pools)} cases, it is a larger network than the plain one." if larger else ""
    return (
        f"**{title}.** `auto` trains networks, lets the best of them teach others, and recommends one. After {EFFORT} "
        f"training runs, its loss is {_lower(auto)} than that of a plain network, on average over {found} "
        f"({_lower(max(changes))} to {_lower(min(changes))}). The best of {EFFORT} plain networks is {_lower(picked)}."
        f"{note}"
    )


def _is_one(row: spend.Outcome) -> bool:
    return (row.method, row.effort, row.budget) == ("auto", EFFORT, 1)


def show_three_networks(results: Measured) -> str:
    """Returns the statement about three networks. It claims to be better only than what it is better than."""
    found = results.compare((AUTO, GROUPS, BEST_COPIES), 3)
    auto, groups, copies = (round(change, 1) for change in found.means)
    beaten = [name for name, change in (("groups", groups), ("copies", copies)) if auto < change]
    if not beaten or auto >= 0:
        raise Outdated("show_three_networks", f"`auto` {auto}%, groups {groups}%, copies {copies}%")
    return (
        f"**Three networks, spent better than on {' or '.join(beaten)}.** Three networks of `auto` have a loss that is "
        f"{_lower(auto)} than that of one plain network, on average over {found}. After the same {EFFORT} training "
        f"runs, the best three groups of tasks are {_lower(groups)}, and the best three copies {_lower(copies)}."
    )


def show_no_trace() -> str:
    """Returns the sentence about the meter."""
    trace = no_trace.find_trace()
    if trace.different or trace.lines != 2:
        raise Outdated("show_no_trace", str(trace))
    return (
        f"**{WORDS[trace.lines].capitalize()} lines in your loop, no trace.** The meter shows which task helps which, "
        f"and training stays the same bit for bit: after {trace.steps} steps, {trace.different} of {trace.numbers:,} "
        "numbers in weights, buffers, optimizer state and the random number generator differ."
    )


def show_differences(results: Measured) -> str:
    """Lists where `auto` is better or worse than the best copies, in pairs of the same repetition, split and effort."""
    return "\n".join(_show_difference(results, budget, AUTO, AUTO_COPIES) for budget in (1, 2, 3))


def show_one_pass(results: Measured) -> str:
    """Lists where `auto` with one network per task is better or worse than the groups of a search."""
    return "\n".join(_show_difference(results, budget, ONE_PASS, GROUPS) for budget in (2, 3, 4))


def _show_difference(results: Measured, budget: int, way: Way, reference: Way) -> str:
    found: dict[str, list[str]] = {}
    for problem in FIVE:
        own, others = (results.changes(one, budget, problem) for one in (way, reference))
        pairs = [own[repetition] - others[repetition] for repetition in own.keys() & others.keys()]
        if pairs:
            found.setdefault(_kind(pairs), []).append(f"`{problem}` ({_with_error(pairs)} points)")
    first = "one network" if budget == 1 else f"{WORDS[budget]} networks"
    kinds = "; ".join(f"{kind} on {_join(names)}" for kind, names in found.items())
    return _item(f"With {first}, {way.title} is {kinds}.")


def show_rules(results: Measured) -> str:
    """Lists where a balancing rule, which needs no search, is better than one network of `auto`."""
    better = []
    for problem in FIVE:
        auto, leads = results.changes(AUTO, 1, problem), []
        for rule in RULES:
            found = results.changes(rule, 1, problem)
            pairs = [found[repetition] - auto[repetition] for repetition in found.keys() & auto.keys()]
            leads += [(statistics.mean(pairs), rule.title)] if pairs else []
        if leads and min(leads)[0] < 0:
            better.append(f"{min(leads)[1]} on `{problem}`")
    if not better:
        return "No balancing rule is better than one network of `auto` on a problem on which both were measured."
    return _wrap(
        f"Some balancing rules are better than one network of `auto`: {_join(better)}. They need a single training "
        "run, so try them first."
    )


def _kind(differences: Sequence[float]) -> str:
    """Says what a mean difference means, given its standard error."""
    better = statistics.mean(differences) < 0
    if len(differences) == 1:
        return f"{'better' if better else 'worse'} in a single repetition, which has no error,"
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    if abs(statistics.mean(differences)) <= 2 * error:
        return "not clearly different"
    return f"clearly {'better' if better else 'worse'}"


def _item(text: str) -> str:
    return _wrap(f"- {text}", "  ")


def _wrap(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _lower(change: float) -> str:
    return f"{abs(change):.1f}% {'lower' if change <= 0 else 'higher'}"


def _join(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def show_readme(results: Measured) -> str:
    """Returns the three statements of the README."""
    return "\n".join(map(_item, (show_one_network(results), show_three_networks(results), show_no_trace())))


def show_comparison(results: Measured) -> dict[str, str]:
    """Returns the parts of docs/comparison.md."""
    return {
        "one network": show_table(results, ONE_NETWORK, 1),
        "three networks": show_table(results, THREE_NETWORKS, 3),
        "trained again": show_table(results, TRAINED_AGAIN, 3, "recipe"),
        "rules": show_rules(results),
        "differences": show_differences(results),
        "one pass": show_one_pass(results),
        "claims": show_claims(),
    }


def show_claims(page: Path = ROOT / "docs" / "paper.md") -> str:
    """Counts the claims of the paper by what became of them."""
    section = page.read_text(encoding="utf-8").partition("### Which claims were reproduced")[2].partition("\n### ")[0]
    answers = re.findall(r"^\| `.* \| ([a-z ]+) \|$", section, re.MULTILINE)
    counts = [answers.count(answer) for answer in ("yes", "no", "within noise", "not tested")]
    if sum(counts) != len(answers) or not answers:
        raise Outdated("show_claims", "the table of claims in docs/paper.md has other answers")
    reproduced, contradicted, unclear, untested = counts
    return (
        f"Claims that we tested: {len(answers) - untested}. Reproduced: {reproduced}. The opposite was found: "
        f"{contradicted}. Too small to tell from noise: {unclear}."
    )


def draw(results: Measured) -> str:
    """Draws the mean change of the loss against the number of networks, as an SVG file."""
    curves: dict[str, dict[int, float]] = {name: {1: 0.0} for name in CURVES}
    for networks in fair.BUDGETS[1:]:
        found = results.compare([way for way, _ in CURVES.values()], networks)
        for curve, change in zip(curves.values(), found.means, strict=True):
            curve[networks] = change
    curves["auto"][1], curves["copies"][1] = results.compare((AUTO, AUTO_COPIES), 1).means
    values = [change for curve in curves.values() for change in curve.values()]
    chart = Chart(GRID * math.floor(min(values) / GRID), GRID * math.ceil(max(values) / GRID))
    title = f"Change of the test loss against one plain network, mean of {found}"
    parts = [chart.axes(title), *(chart.curve(CURVES[name][1], curve) for name, curve in curves.items())]
    ends = _apart({name: chart.y(curve[max(curve)]) for name, curve in curves.items()}, 17)
    last = chart.x(max(fair.BUDGETS)) + 10
    parts += [_text(last, place + 4, name, color=CURVES[name][1], weight=600) for name, place in ends.items()]
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="system-ui, sans-serif">'
    return "\n".join([head, f"<title>{title}</title>", *parts, "</svg>\n"])


@dataclass(frozen=True)
class Chart:
    """Where numbers of networks and changes in percent are in the picture, and how they are drawn."""

    lowest: int
    highest: int

    def x(self, networks: float) -> float:
        """Returns the horizontal place of a number of networks."""
        return LEFT + (networks - 1) / (max(fair.BUDGETS) - 1) * (WIDTH - LEFT - RIGHT)

    def y(self, change: float) -> float:
        """Returns the vertical place of a change."""
        return TOP + (self.highest - change) / (self.highest - self.lowest) * (HEIGHT - TOP - BOTTOM)

    def axes(self, title: str) -> str:
        """Draws the background, a grid, and the labels of both axes."""
        parts = [f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>', _text(16, 24, title, size=15, weight=600)]
        for change in range(self.lowest, self.highest + 1, GRID):
            parts.append(f'<path d="M{LEFT} {self.y(change):.1f}H{WIDTH - RIGHT}" stroke="#d9dce1"/>')
            label = f"{change:+d}%".replace("-", "−") if change else "0%"
            parts.append(_text(LEFT - 8, self.y(change) + 4, label, anchor="end"))
        below = HEIGHT - BOTTOM + 20
        parts += [_text(self.x(networks), below, str(networks), anchor="middle") for networks in fair.BUDGETS]
        return "\n".join([*parts, _text(self.x(2.5), HEIGHT - 8, "networks in use", anchor="middle")])

    def curve(self, color: str, values: dict[int, float]) -> str:
        """Draws a line with a dot for each number of networks."""
        places = [(self.x(networks), self.y(change)) for networks, change in sorted(values.items())]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{color}"/>' for x, y in places]
        return "\n".join([f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2.5"/>', *dots])


def _text(
    x: float, y: float, words: str, *, anchor: str = "start", size: int = 13, color: str = "#3a3f47", weight: int = 400
) -> str:
    style = f'font-size="{size}" font-weight="{weight}" fill="{color}" text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{words}</text>'


def _apart(places: dict[str, float], distance: float) -> dict[str, float]:
    """Moves labels down until none covers another."""
    moved: dict[str, float] = {}
    for name, place in sorted(places.items(), key=lambda item: item[1]):
        moved[name] = max(place, max(moved.values(), default=-math.inf) + distance)
    return moved


def write_docs(results: Measured) -> None:
    """Writes all numbers into the pages."""
    replace_part(README, "summary.py", "numbers", show_readme(results))
    for name, content in show_comparison(results).items():
        replace_part(COMPARISON, "summary.py", name, content)
    PICTURE.write_text(draw(results), encoding="utf-8")
    fair.write_docs(results.fair)
    spend.write_docs(results.spend)


def main() -> None:
    """Prints the numbers, or writes them into the pages."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--fair", type=Path, default=FAIR, help="the results of fair.py")
    parser.add_argument("--spend", type=Path, default=SPEND, help="the results of spend.py")
    parser.add_argument("--write-docs", action="store_true", help="replace the numbers of README and documentation")
    options = parser.parse_args()
    results = Measured.read(options.fair, options.spend)
    if options.write_docs:
        write_docs(results)
    for content in (show_readme(results), *show_comparison(results).values()):
        print(f"{content}\n")


if __name__ == "__main__":
    main()
