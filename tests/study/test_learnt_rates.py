"""How often the verdict knows whether anything was learnt, on trained networks."""

import json
from pathlib import Path

import pytest

from forked_script import run_script

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent


def measure(out: Path, *options: str) -> list[dict]:
    done = run_script(ROOT / "benchmarks" / "learnt_rates.py", "--quick", "--json", str(out), *options)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text())


def test_noise_is_seldom_learnt_and_a_weak_signal_usually(tmp_path: Path) -> None:
    noise, rare, weak = measure(tmp_path / "rates.json", "--repetitions", "6", "--worlds", "noise,rare,weak")
    assert noise["nothing"] >= 5
    assert rare["nothing"] >= 5
    assert weak["nothing"] == 0
    assert weak["explained"] >= 0.7


def test_two_epochs_are_always_provisional(tmp_path: Path) -> None:
    (noise,) = measure(tmp_path / "rates.json", "--repetitions", "2", "--worlds", "noise", "--epochs", "2")
    assert noise["provisional"] == 2
