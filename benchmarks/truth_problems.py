"""The problems that have truth tables."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from tagalong.learn import MLP, Problem, Recipe, Task, read_columns
from tagalong.problems import load_problem

Load = Callable[..., Problem]  # takes a data folder or None, and the seed of the split
TOX21 = ("tox21.csv.gz", "tox21_morgan2_1024.npz")
NOT_TASKS = ("mol_id", "smiles")
NHANES_HIDDEN = (32,)
# With these recipes, fewer than 5% of the networks for all tasks are best in one of their last three epochs.
NHANES_RECIPE = Recipe(lr=1e-2, batch_size=512, epochs=40, patience=5, weight_decay=0.1)
TOX21_RECIPE = Recipe(lr=1e-3, batch_size=512, epochs=30, patience=4, weight_decay=0.1)
QM9_RECIPE = Recipe(lr=5e-3, batch_size=512, patience=15, schedule="step", period=40)
QM9_EPOCHS = {32: 300, 128: 120}  # by width; wider networks need fewer
LOADS = {  # problems shipped with the package, so that new estimators can be measured on their tables
    "nhanes": {"name": "nhanes", "options": {}, "hidden": NHANES_HIDDEN},
    "faces": {"name": "faces", "options": {"rows": 4000, "pixels": 16, "channels": 6}},
}


def nhanes(data: Path | None, seed: int = 0) -> Problem:
    """Loads the health survey of the demo, from its package or a copy of its table, with a small network of its own."""
    table = None if data is None else data / "nhanes.tsv"
    problem = load_problem("nhanes", seed=seed, data=table if table is not None and table.exists() else None)
    encoder = MLP(problem.train.inputs.shape[1], NHANES_HIDDEN)
    return replace(problem, encoder=encoder, head=None, recipe=NHANES_RECIPE)


def faces(data: Path | None, seed: int = 0) -> Problem:
    """Loads synthetic faces with a small convolutional network."""
    return load_problem("faces", **LOADS["faces"]["options"], seed=seed)


def qm9(width: int, rows: int = 12_000) -> Load:
    """Returns a loader for small molecules, with two hidden layers of the given width."""
    recipe = replace(QM9_RECIPE, epochs=QM9_EPOCHS[width])

    def load(data: Path | None, seed: int = 0) -> Problem:
        folder = None if data is None else data / "qm9"
        return load_problem("qm9", rows=rows, hidden=(width, width), data=folder, recipe=recipe, seed=seed)

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
        recipe=TOX21_RECIPE,
        groups=np.asarray(columns["smiles"])[valid],  # some molecules occur twice
        split=(0.6, 0.2, 0.2),
        seed=seed,
    )


PROBLEMS: dict[str, Load] = {
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
