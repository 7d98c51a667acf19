"""How often the verdict knows whether anything was learnt, on trained networks."""

import json
from pathlib import Path

from forked_script import run_script

ROOT = Path(__file__).parent.parent.parent


def measure(out: Path, *options: str) -> list[dict]:
    done = run_script(ROOT / "benchmarks" / "learnt_rates.py", "--quick", "--json", str(out), *options)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text())


def test_noise_is_seldom_learnt_and_a_weak_signal_usually(tmp_path: Path) -> None:
    noise, rare, one = measure(tmp_path / "rates.json", "--repetitions", "8", "--worlds", "noise,rare,one")
    assert noise["nothing"] >= 7
    assert rare["nothing"] >= 7
    assert one["explained"] >= 0.8
    assert one["unexplained"] <= 0.1


def test_two_epochs_are_always_provisional(tmp_path: Path) -> None:
    (noise,) = measure(tmp_path / "rates.json", "--repetitions", "2", "--worlds", "noise", "--epochs", "2")
    assert noise["provisional"] == 2
