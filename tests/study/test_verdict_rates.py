"""How often the verdict is wrong: on random changes with known truth, and on trained networks."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from verdict_records import TOGETHER, records, together

from forked_script import run_script
from tagalong.group import Group
from tagalong.study import Record, RowNoise, Score
from tagalong.study.verdict import decide

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
GROUPINGS = [(Group({"a"}, {"a"}), Group({"b", f"h{number}"}, {"b"})) for number in range(10)]


def claim_rates(
    candidates: int, seed_noise: float, row_noise: float, effect: float = 0.0, draws: int = 400
) -> list[float]:
    """Returns the share of claims on random changes: of the recipe, and by Student's t over seeds alone.

    The noise of a network (its seed) is the same on validation and test; the noise of the rows is independent.
    """
    rng = np.random.default_rng(0)
    claimed = np.zeros((draws, 2))
    for draw in range(draws):
        found = []
        for number in range(candidates):
            luck = effect + seed_noise * rng.normal(size=3)
            val, test = (luck + row_noise * rng.normal() for _ in range(2))
            found.append(records("tag", number, val, test, GROUPINGS[number]))
        all_records = [*together(), *(record for some in found for record in some)]
        noise = {("tag", number): row_noise for number in range(candidates)}
        verdict = decide(all_records, noise, at_least=0.0)
        assert verdict.candidate is not None
        assert verdict.recipe is not None
        naive = decide([*together(), *found[verdict.candidate[1]]], {}, at_least=0.0)
        claimed[draw] = verdict.recipe.better and verdict.expected < 0, naive.worth_it
    return claimed.mean(axis=0).tolist()


@pytest.mark.parametrize(
    ("candidates", "seed_noise", "row_noise"),
    [(1, 0.01, 0.01), (1, 0.001, 0.01), (10, 0.001, 0.01), (10, 0.01, 0.01), (10, 0.01, 0.001)],
)
def test_the_recipe_rarely_claims_a_gain_if_there_is_none(candidates: int, seed_noise: float, row_noise: float) -> None:
    assert claim_rates(candidates, seed_noise, row_noise)[0] <= 0.05


def test_an_interval_from_seeds_alone_would_claim_too_often() -> None:
    """Shows why the interval includes the noise of rows and the choice among groupings."""
    verdict, seeds_alone = claim_rates(1, seed_noise=0.001, row_noise=0.01)
    assert verdict <= 0.05 < 0.15 < seeds_alone
    verdict, seeds_alone = claim_rates(10, seed_noise=0.01, row_noise=0.0001)
    assert verdict <= 0.05 < 0.08 < seeds_alone


def test_the_recipe_claims_a_real_gain() -> None:
    assert claim_rates(10, seed_noise=0.005, row_noise=0.005, effect=-0.1, draws=200)[0] >= 0.95


@pytest.mark.parametrize(("candidates", "seed_noise"), [(1, 0.01), (10, 0.01), (10, 0.001)])
def test_networks_that_are_worth_it_are_better_on_unseen_rows(candidates: int, seed_noise: float) -> None:
    """The networks you get were picked, but on validation, so rows are the only noise of their test losses."""
    rng, wrong, row_noise, draws = np.random.default_rng(0), 0, 0.01, 200
    for _ in range(draws):
        truth = seed_noise * rng.normal(size=(candidates, 3))  # on unseen rows, compared with plain networks
        found = []
        for number, luck in enumerate(truth):
            val, test = (luck + row_noise * rng.normal(size=3) for _ in range(2))
            found += records("tag", number, val, test, GROUPINGS[number])
        labels = [("tag", number) for number in range(candidates)]
        noise = RowNoise(dict.fromkeys(labels, row_noise), dict.fromkeys(labels, row_noise))
        verdict = decide([*together(), *found], noise)
        assert verdict.candidate is not None
        wrong += verdict.worth_it and truth[verdict.candidate[1], verdict.networks_seed] >= 0
    assert wrong <= 0.05 * draws


COPIES = tuple(Group("ab", "ab", copy=copy) for copy in range(2))


def with_changes(found: list[Record], val: np.ndarray, test: np.ndarray) -> list[Record]:
    """Replaces the losses by changes from 1, by task and seed."""
    return [
        replace(
            record,
            val={name: Score(1 + change, 0.0) for name, change in zip("ab", val[:, record.seed], strict=True)},
            test={name: Score(1 + change, 0.0) for name, change in zip("ab", test[:, record.seed], strict=True)},
        )
        for record in found
    ]


def group_rates(effect: float, confirm: bool, copies_gain: float = 0.0, draws: int = 200) -> tuple[float, float, float]:
    """Returns how often networks are worth it, groups are better than copies, and picked networks are really better.

    For each task, `optimal` serves the best of eight networks on validation, averaged over three seeds. Seeds make a
    network better or worse on validation and test. Averaged copies are better by `copies_gain`, without picking.
    """
    rng, seed_noise, row_noise = np.random.default_rng(1), 0.02, 0.003
    found, seeds = np.zeros((draws, 3)), 6 if confirm else 3
    for draw in range(draws):
        luck = effect + seed_noise * rng.normal(size=(2, 8, seeds))  # by task, network and seed
        rows = row_noise * rng.normal(size=(2, 2, 8, 1))  # of validation and test
        picked = (luck + rows[0])[:, :, :3].mean(2).argmin(1)
        val, test = (np.stack([(luck + some)[task, picked[task]] for task in range(2)]) for some in rows)
        luck = -copies_gain + 0.7 * seed_noise * rng.normal(size=(2, seeds))
        copies = [luck, luck + row_noise * rng.normal(size=(2, 1))]
        found_records = [
            *with_changes(records("mtl", None, [0.0] * seeds, [0.0] * seeds, TOGETHER), *np.zeros((2, 2, seeds))),
            *with_changes(records("optimal", 2, [0.0] * seeds, [0.0] * seeds), val, test),
            *with_changes(records("ensemble", 2, [0.0] * seeds, [0.0] * seeds, COPIES), *copies),
        ]
        noise = {("optimal", 2): row_noise, ("ensemble", 2): row_noise}
        verdict = decide(found_records, noise, confirming=range(3, seeds))
        found[draw] = verdict.worth_it, bool(verdict.better_than_copies), test[:, :3].mean() < 0
    worth_it, matter, lucky = found.mean(0).tolist()
    return worth_it, matter, lucky


@pytest.mark.parametrize("confirm", [False, True])
def test_the_luck_of_picked_networks_does_not_make_groups_matter(confirm: bool) -> None:
    worth_it, matter, lucky = group_rates(effect=0.0, confirm=confirm)
    assert lucky > 0.9, "else the test shows nothing"
    assert worth_it > 0.4, "the networks you get are often better than one plain network"
    assert matter <= 0.05


def test_groups_that_are_really_better_than_copies_matter() -> None:
    worth_it, matter, _ = group_rates(effect=-0.15, confirm=True)
    assert worth_it >= 0.95
    assert matter >= 0.95


def measure(out: Path, *options: str) -> list[dict[str, Any]]:
    done = run_script(ROOT / "benchmarks" / "verdict_rates.py", *options, "--json", str(out))
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text())


def test_the_verdict_on_trained_networks_is_right_with_and_without_a_gain(tmp_path: Path) -> None:
    noise, conflict = measure(tmp_path / "rates.json", "--repetitions", "40", "--worlds", "noise,conflict")
    assert noise["worth it"] <= 0.05
    assert noise["recipe"] <= 0.05
    assert conflict["worth it"] >= 0.95
    assert conflict["recipe"] >= 0.95
    assert conflict["on fresh rows"] < -0.1  # grouping really is better there, on unseen rows


def test_noise_is_seldom_learnt_and_a_weak_signal_usually(tmp_path: Path) -> None:
    learnt = ["--what", "learnt", "--repetitions", "6"]
    noise, rare = measure(tmp_path / "few.json", *learnt, "--worlds", "noise,rare", "--rows", "560,80,160")
    (weak,) = measure(tmp_path / "many.json", *learnt, "--worlds", "weak", "--rows", "2000,2000,2000")
    assert noise["nothing learnt"] >= 5 / 6
    assert rare["nothing learnt"] >= 5 / 6
    assert weak["nothing learnt"] == 0
    assert weak["explained"] >= 0.7
