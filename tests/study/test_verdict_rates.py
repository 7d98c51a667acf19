"""How often the verdict is wrong: on random changes with known truth, and on trained networks."""

import json
from pathlib import Path

import numpy as np
import pytest
from verdict_records import records, together

from forked_script import run_script
from tagalong.group import Group
from tagalong.study.verdict import decide

ROOT = Path(__file__).parent.parent.parent
GROUPINGS = [(Group({"a"}, {"a"}), Group({"b", f"h{number}"}, {"b"})) for number in range(10)]


def claim_rates(
    candidates: int, seed_noise: float, row_noise: float, effect: float = 0.0, draws: int = 400
) -> list[float]:
    """Returns the share of claims on random changes: by the verdict, and by Student's t over seeds alone.

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
        verdict = decide(all_records, {("tag", number): row_noise for number in range(candidates)})
        assert verdict.candidate is not None
        naive = decide([*together(), *found[verdict.candidate[1]]], {})
        claimed[draw] = verdict.worth_it, naive.worth_it
    return claimed.mean(axis=0).tolist()


@pytest.mark.parametrize(
    ("candidates", "seed_noise", "row_noise"),
    [(1, 0.01, 0.01), (1, 0.001, 0.01), (10, 0.001, 0.01), (10, 0.01, 0.01), (10, 0.01, 0.001)],
)
def test_the_verdict_rarely_claims_a_gain_if_there_is_none(
    candidates: int, seed_noise: float, row_noise: float
) -> None:
    assert claim_rates(candidates, seed_noise, row_noise)[0] <= 0.05


def test_an_interval_from_seeds_alone_would_claim_too_often() -> None:
    """Shows why the interval includes the noise of rows and the choice among groupings."""
    verdict, seeds_alone = claim_rates(1, seed_noise=0.001, row_noise=0.01)
    assert verdict <= 0.05 < 0.15 < seeds_alone
    verdict, seeds_alone = claim_rates(10, seed_noise=0.01, row_noise=0.0001)
    assert verdict <= 0.05 < 0.08 < seeds_alone


def test_the_verdict_claims_a_real_gain() -> None:
    assert claim_rates(10, seed_noise=0.005, row_noise=0.005, effect=-0.1, draws=200)[0] >= 0.95


def test_the_verdict_on_trained_networks_is_right_with_and_without_a_gain(tmp_path: Path) -> None:
    out = tmp_path / "rates.json"
    script = ROOT / "benchmarks" / "verdict_rates.py"
    options = ["--repetitions", "40", "--worlds", "noise,conflict", "--json", str(out)]
    done = run_script(script, *options)
    assert done.returncode == 0, done.stderr
    noise, conflict = json.loads(out.read_text())
    assert noise["worth_it"] <= 0.05 * 40
    assert conflict["worth_it"] >= 0.95 * 40
    assert conflict["fresh"] < -0.1  # grouping really is better there, on unseen rows
