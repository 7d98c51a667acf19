"""How much time measuring adds to the first training of `auto` (see the README in this folder).

python benchmarks/auto_overhead.py
python benchmarks/auto_overhead.py --data DIR          # also qm9 and tox21
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from tagalong.learn import Job, train
from tagalong.study.methods.auto import METER_SETTINGS, measuring_interval
from truth_problems import PROBLEMS


def main() -> None:
    """Prints a row for each problem whose data are available."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("problems", nargs="*", default=list(PROBLEMS), metavar="PROBLEM")
    parser.add_argument("--data", type=Path, help="folder with qm9/, tox21/ and nhanes.tsv")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| problem | tasks | measured every | measured steps | overhead |\n|---|---|---|---|---|")
    for name in options.problems:
        try:
            problem = PROBLEMS[name](options.data)
        except (FileNotFoundError, ImportError, ValueError):
            continue
        n = len(problem.names)
        settings = {**METER_SETTINGS, "every": measuring_interval(n)}
        found = [
            train(problem, Job(problem.names, seed), device=options.device, meter=settings).affinity
            for seed in range(options.repetitions)
        ]
        ratio = np.median([affinity.settings["overhead"] for affinity in found])
        print(f"| {name} | {n} | {measuring_interval(n)} steps | {len(found[0].steps)} | {ratio:.1%} |", flush=True)


if __name__ == "__main__":
    main()
