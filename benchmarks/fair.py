"""What is the best use of k networks, if every method may train equally many (see the README)?

    python benchmarks/fair.py --data DIR --device cuda --json benchmarks/fair_results.json
    python benchmarks/fair.py nhanes --repetitions 3-5 --parts copies,auto --data DIR --json more.json
    python benchmarks/fair.py --show benchmarks/fair_results.json

Every repetition draws a new split (or new data) and new seeds. All numbers are changes of the test loss relative to one
plain network for all tasks (the mean over many seeds), averaged over tasks; negative numbers are better. Methods choose
on validation rows. What they chose is judged twice: by the very networks that they chose, and by the recipe, i.e. the
same plan trained again with fresh seeds.

A repetition has several parts: `copies`, on which the others are based, `groups`, `auto`, `tables` (other networks, and
boosting) and `balancing` (one network trained with other rules). Each is saved as soon as it is finished. If the
command is stopped and run again with the same `--json`, it continues with the parts that are missing.
"""

import argparse
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fair_problems import PROBLEMS, TABLE_NETWORKS
from harness import Row, make_parser, mean_and_error, numbers, progress, save_json, span, start, table
from pool import Pool
from tagalong.group import Group
from tagalong.learn import Job, Problem, Trained, row_influences, train
from tagalong.study import make_method
from tagalong.study.noise import row_stderr
from tagalong.study.search import ALL, Answers, best_set

BUDGETS, EFFORTS = (1, 2, 3, 4), (3, 6, 20, 60)
SEARCH_SEEDS = 3  # of the search for groups, as in a study
FRESH_SEEDS = 4  # that judge a recipe
FRESH_COPIES = 12  # divided into sets of k that judge the recipe of k averaged copies
SEEDS_PER_REPETITION, FIRST_COPY, FIRST_FRESH = 1000, 100, 500
ONE_PASS_EFFORTS = (20, 60)
RULES, RULE_SEEDS = ("uw", "gradnorm", "pcgrad"), 3  # that balance the losses of one network
OWN_EFFORT = {"ensemble", "mtl-big", *TABLE_NETWORKS}  # methods that train only the networks that they use
LAST_EPOCHS = 3
Losses = np.ndarray  # the test loss of each task
Case = dict[str, Any]  # the results on one problem and repetition


class Comparison:
    """Compares ways to use k networks on one problem and repetition."""

    def __init__(self, name: str, repetition: int, options: argparse.Namespace) -> None:
        self.options, self.first = options, SEEDS_PER_REPETITION * (repetition + 1)
        self.problem = shorten(PROBLEMS[name].load(options.data, repetition), options.rows, options.epochs)
        self.pool = Pool(self.problem, options.device)
        self.fresh = [self.first + FIRST_FRESH + number for number in range(FRESH_COPIES)]

    @cached_property
    def copies(self) -> list[Trained]:
        """Plain networks that differ only in their seeds; the last `FRESH_COPIES` judge recipes."""
        seeds = [self.first + FIRST_COPY + number for number in range(max(self.options.efforts))]
        trained = self.pool.train(Job(self.problem.names, seed) for seed in (*seeds, *self.fresh))
        return [network for network in trained if not network.diverged]

    @cached_property
    def plain(self) -> Losses:
        return np.mean([_test_losses(network) for network in self.copies], 0)

    def row(
        self, method: str, effort: int, budget: int, very: Iterable[Losses], recipe: Iterable[Losses], **more: Any
    ) -> Row:
        """Returns what a method reached with the very networks that it chose, and with the same plan and fresh seeds.

        Its effort is the number of networks that it trained before it chose.
        """
        changes = [float((np.mean(list(losses), 0) / self.plain - 1).mean()) for losses in (very, recipe)]
        return {"method": method, "effort": effort, "budget": budget, "very": changes[0], "recipe": changes[1], **more}

    def compare_copies(self) -> list[Row]:
        """Any k copies, the best k of E copies, and networks with the parameters of k networks."""
        jobs = [network.job for network in self.copies]
        val, test = (self.pool.answers(jobs, part) for part in ("val", "test"))
        single = val.losses([(number,) for number in range(len(jobs))])[:, :, ALL].mean(0)
        count, rows = len(jobs) - FRESH_COPIES, []
        for budget in self.options.budgets:
            recipe = test.losses(divide(range(count, len(jobs)), budget))[:, :, ALL]
            very = test.losses(divide(range(count), budget))[:, :, ALL]
            rows.append(self.row("ensemble", budget, budget, very, recipe))
            for effort in self.options.efforts:
                picked = [pick(val, candidates, budget, single) for candidates in divide(range(count), effort)]
                rows.append(self.row("best-of", effort, budget, test.losses(picked)[:, :, ALL], recipe))
        for budget in self.options.budgets[1:]:
            width = make_method(f"mtl-big{budget}").width(self.problem)
            jobs = [Job(self.problem.names, seed, width=width) for seed in self.fresh[:FRESH_SEEDS]]
            losses = [_test_losses(network) for network in self.pool.train(jobs) if not network.diverged]
            rows.append(self.row("mtl-big", budget, budget, losses, losses))
        return rows

    def compare_groups(self) -> list[Row]:
        """Groups of TAG, of HOA, and of a search."""
        n, seeds = len(self.problem.names), [self.first + number for number in range(SEARCH_SEEDS)]
        plans = [("tag", 1, make_method("tag"), seeds[:1]), ("hoa", n * (n + 1) // 2, make_method("hoa"), seeds[:1])]
        for effort in self.options.efforts:
            settings = {"auto": {"effort": effort, "average": False}}  # groups only
            plans.append(("groups", effort, make_method("auto", settings), seeds))
        budgets = [budget for budget in self.options.budgets if 1 < budget <= n]
        together, rows = [Group(self.problem.names, self.problem.names)], []
        for name, effort, method, own in plans:
            decision = method.decide(self.pool, budgets, own)
            for budget in budgets:
                groups = decision.choices[budget, own[0]].groups
                plain = np.mean([self.pool.losses(together, seed, "val") for seed in own], 0)
                values = {seed: (self.pool.losses(groups, seed, "val") / plain).mean() for seed in own}
                very = self.pool.losses(groups, min(own, key=values.__getitem__))
                recipe = [self.pool.losses(groups, seed) for seed in self.fresh[:FRESH_SEEDS]]
                rows.append(self.row(name, effort, budget, [very], recipe))
        return rows

    def compare_auto(self) -> list[Row]:
        """`auto`, also with one network per task (`passes=1`), and how sure it was."""
        plans = [("auto", effort, {}) for effort in self.options.efforts]
        plans += [
            ("auto, one pass", effort, {"passes": 1}) for effort in self.options.efforts if effort in ONE_PASS_EFFORTS
        ]
        fresh = [self.pool.trained[network.job].test for network in self.copies[-FRESH_COPIES:]]
        plain = {task: np.mean([scores[task].rows for scores in fresh], axis=0) for task in self.problem.names}
        rows = []
        for name, effort, settings in plans:
            auto = make_method("auto", {"auto": {"effort": effort, **settings}})
            decision = auto.decide(self.pool, self.options.budgets, [self.first])
            for budget in self.options.budgets:
                groups, chosen = decision.choices[budget, self.first].groups, decision.about["chosen"][str(budget)]
                very = self.pool.losses(groups, self.first)
                recipe = [self.pool.losses(groups, seed) for seed in self.fresh[: FRESH_SEEDS - 1]]
                own = self.pool.test_rows(groups, self.first)
                gains = {task: (plain[task] - own[task]) / np.nanmean(plain[task]) for task in self.problem.names}
                error = row_stderr(row_influences(gains), self.problem.test.groups)
                more = {key: chosen[key] for key in ("expected", "doubt", "family")} | {"error": error}
                spent = decision.about["spent"]
                rows.append(self.row(name, effort, budget, [very], recipe, spent=spent, **more))
        return rows

    def compare_tables(self) -> list[Row]:
        """Copies of other networks for tables, and boosting with one model per task."""
        rows = []
        for kind, change_network in TABLE_NETWORKS.items():
            count, budgets = (FRESH_SEEDS, (1,)) if kind == "TabM" else (FRESH_COPIES, self.options.budgets)
            problem = change_network(self.problem)
            if self.options.epochs is not None:
                problem = shorten(problem, None, self.options.epochs)
            pool = Pool(problem, self.options.device)
            trained = pool.train(Job(problem.names, seed) for seed in self.fresh[:count])
            jobs = [network.job for network in trained if not network.diverged]
            answers = pool.answers(jobs, "test")
            for budget in budgets:
                losses = answers.losses(divide(range(len(jobs)), budget))[:, :, ALL]
                rows.append(self.row(kind, budget, budget, losses, losses))
        scores = train(self.problem, Job(self.problem.names, network="boosting")).test
        losses = [np.array([scores[task].loss for task in self.problem.names])]
        return [*rows, self.row("boosting", 1, 1, losses, losses)]

    def compare_balancing(self) -> list[Row]:
        """One network for all tasks with each rule that balances losses or combines gradients."""
        rows = []
        for rule in RULES:
            jobs = [Job(self.problem.names, seed, rule) for seed in self.fresh[:RULE_SEEDS]]
            losses = [_test_losses(train(self.problem, job, device=self.options.device)) for job in jobs]
            rows.append(self.row(rule, 1, 1, losses, losses))
        return rows


PARTS = {
    "copies": Comparison.compare_copies,
    "groups": Comparison.compare_groups,
    "auto": Comparison.compare_auto,
    "tables": Comparison.compare_tables,
    "balancing": Comparison.compare_balancing,
}


def pick(answers: Answers, candidates: Sequence[int], size: int, single: np.ndarray) -> tuple[int, ...]:
    """Returns the candidates whose averaged answers are best; `single` are the losses of one."""

    def values(members: tuple[int, ...], others: Sequence[int]) -> np.ndarray:
        return (answers.losses_with(members, others)[:, :, ALL] / single).mean(1)

    return best_set(values, candidates, min(size, len(candidates)))[1]


def divide(places: Sequence[int], size: int) -> list[tuple[int, ...]]:
    """Returns disjoint sets of this size; places that are left over are not used."""
    size = min(size, len(places))
    return [tuple(places[first : first + size]) for first in range(0, len(places) - size + 1, size)]


def _test_losses(network: Trained) -> Losses:
    return np.array([score.loss for score in network.test.values()])


def shorten(problem: Problem, rows: int | None, epochs: int | None) -> Problem:
    """Keeps only the first rows of each split and fewer epochs, for a quick trial."""
    if rows is not None:
        splits = {
            part: replace(
                split,
                inputs=split.inputs[:rows],
                targets={task: values[:rows] for task, values in split.targets.items()},
                groups=None if split.groups is None else split.groups[:rows],
            )
            for part, split in problem.splits.items()
        }
        problem = replace(problem, **splits)
    return problem if epochs is None else replace(problem, recipe=replace(problem.recipe, epochs=epochs))


def measure(cases: list[Case], options: argparse.Namespace) -> None:
    """Measures the parts that are missing, and saves the results after each of them."""
    by_key = {(case["problem"], case["repetition"]): case for case in cases}
    for repetition in options.repetitions:
        for name in options.problems:
            case = by_key.get((name, repetition), {"problem": name, "repetition": repetition, "parts": [], "rows": []})
            missing = [part for part in options.parts if part not in case["parts"]]
            if not PROBLEMS[name].is_table and "tables" in missing:
                missing.remove("tables")
            if not missing:
                continue
            try:
                comparison = Comparison(name, repetition, options)
            except (FileNotFoundError, ImportError) as error:
                progress(f"{name}: skipped, {error}")
                continue
            if not case["parts"]:
                cases.append(case)
            for part in missing:
                begun = time.perf_counter()
                case["rows"] += PARTS[part](comparison)
                case["parts"].append(part)
                progress(f"{name}, repetition {repetition}, {part}: {time.perf_counter() - begun:.0f} s")
                save_json(options.json, cases)
            last = comparison.problem.recipe.epochs - LAST_EPOCHS
            case["networks"] = len(comparison.copies)
            case["late"] = sum(network.best_epoch >= last for network in comparison.copies)
            save_json(options.json, cases)


def show(cases: Sequence[Case], kind: str) -> str:
    """Formats the mean changes over repetitions, in percent, with standard errors."""
    lines = []
    for problem in dict.fromkeys(case["problem"] for case in cases):
        rows = [row for case in cases if case["problem"] == problem for row in case["rows"]]
        ways = dict.fromkeys((row["method"], None if row["method"] in OWN_EFFORT else row["effort"]) for row in rows)
        for method, effort in ways:
            line: Row = {"problem": problem, "method": method, "trainings": "k" if effort is None else effort}
            own = [row for row in rows if row["method"] == method and effort in (None, row["effort"])]
            for budget in BUDGETS:
                line[f"k = {budget}"] = mean_and_error([100 * row[kind] for row in own if row["budget"] == budget])
            lines.append(line)
    return table(lines)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("problems", nargs="*", default=list(PROBLEMS), metavar="PROBLEM", help=", ".join(PROBLEMS))
    parser.add_argument("--repetitions", type=span, default=span("1-5"), help="their number, or a range such as 3-5")
    parser.add_argument("--parts", type=lambda text: text.split(","), default=list(PARTS), help=",".join(PARTS))
    parser.add_argument("--efforts", type=numbers, default=EFFORTS)
    parser.add_argument("--budgets", type=numbers, default=BUDGETS)
    parser.add_argument("--data", type=Path, help="folder with qm9/, tox21/, nhanes.tsv and digits.npz")
    parser.add_argument("--rows", type=int, help="rows of each split, for a quick trial")
    parser.add_argument("--epochs", type=int, help="maximum number of epochs, for a quick trial")
    parser.add_argument("--show", type=Path, help="only print the tables of earlier results")
    options = start(parser)
    path = options.show or options.json
    cases: list[Case] = json.loads(path.read_text(encoding="utf-8")) if path and path.exists() else []
    if options.show is None:
        measure(cases, options)
    late, networks = (sum(case[name] for case in cases) for name in ("late", "networks"))
    print(f"The very networks that were chosen:\n\n{show(cases, 'very')}\n")
    print(f"The recipe, trained again with fresh seeds:\n\n{show(cases, 'recipe')}\n")
    print(f"{late} of {networks} plain networks are best in one of their last {LAST_EPOCHS} epochs.")


if __name__ == "__main__":
    main()
