"""The tables on which models are compared."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tagalong.learn import Problem, Task
from tagalong.problems import load_problem
from truth_problems import nhanes, tox21

DEVELOPMENT_ROWS, TIMED_ROWS, NOT_INPUTS = 7000, 3600, ["title", "smiles", "split"]
HOLES = (1, 0, 0, 0, 1, 0, 1, 0, 2, 1)  # in each digit, as written by hand
Array = NDArray[np.float64]


def regressions(*names: str) -> list[Task]:
    """Returns regression tasks."""
    return [Task(name, kind="regression") for name in names]


def diabetes(data: Path | None, seed: int) -> Problem:
    """442 patients: the progression of their disease, body mass index and blood pressure."""
    frame, targets = read_frame("diabetes", data)
    return Problem.from_table(frame, regressions(*targets), seed=seed)


def digits(data: Path | None, seed: int) -> Problem:
    """1,797 digits of 8 × 8 pixels: which one, whether it is even, whether it exceeds 4, and its holes."""
    from sklearn.datasets import load_digits

    found = load_digits()
    digit = found.target
    labels = {"digit": digit, "even": digit % 2 == 0, "above 4": digit > 4, "holes": np.array(HOLES)[digit]}
    tasks = [
        Task("digit", "multiclass", classes=10), Task("even"), Task("above 4"), Task("holes", "multiclass", classes=3)
    ]  # fmt: skip
    return Problem.from_arrays(found.data, labels, tasks, name="digits", seed=seed)


def qm9(rows: int) -> Callable[[Path | None, int], Problem]:
    """Returns a loader for small molecules."""
    return lambda data, seed: load_problem("qm9", rows=rows, seed=seed, data=data and data / "qm9")


def read_frame(name: str, data: Path | None, rows: int = TIMED_ROWS) -> tuple[pd.DataFrame, list[str]]:
    """Returns some rows of diabetes or of a table whose targets start with `y_`, and the targets."""
    if name == "diabetes":
        from sklearn.datasets import load_diabetes

        return load_diabetes(as_frame=True, scaled=False).frame, ["target", "bmi", "bp"]
    if data is None or not (data / "tables" / name).is_dir():
        raise FileNotFoundError(f"{name} needs --data with tables/{name}")
    frame = pd.read_csv(data / "tables" / name / f"{name}.csv.gz", low_memory=False)
    frame = frame.sample(min(rows, len(frame)), random_state=0).drop(columns=NOT_INPUTS, errors="ignore")
    return frame, [column for column in frame if column.startswith("y_")]


def development(name: str) -> Callable[[Path | None, int], Problem]:
    """Returns a loader for one of three tables whose targets start with `y_`, with at most 7,000 of their rows."""

    def load(data: Path | None, seed: int) -> Problem:
        if data is None or not (data / "tables" / name).is_dir():
            raise FileNotFoundError(f"{name} needs --data with tables/{name}")
        folder = data / "tables" / name
        frame = pd.read_csv(folder / f"{name}.csv.gz", low_memory=False)
        chosen = np.random.default_rng(seed).permutation(len(frame))[:DEVELOPMENT_ROWS]
        frame = frame.iloc[chosen].drop(columns=NOT_INPUTS, errors="ignore").reset_index(drop=True)
        targets = [column for column in frame if column.startswith("y_")]
        texts = [column for column in frame if not pd.api.types.is_numeric_dtype(frame[column])]
        if name != "adme":
            numbers = [column for column in frame if column.startswith(("system", "schoolid"))]
            return Problem.from_table(frame, targets, categorical=[*texts, *numbers], name=name, seed=seed)
        with np.load(folder / "morgan2_1024.npz") as file:
            bits = np.unpackbits(file["fp"], axis=1)[chosen]
        inputs = np.hstack([pd.get_dummies(frame.drop(columns=targets), columns=texts).to_numpy(float), bits])
        labels = {column: frame[column].to_numpy(float) for column in targets}
        return Problem.from_arrays(inputs, labels, regressions(*targets), name=name, seed=seed)

    return load


TABLES: Mapping[str, Callable[[Path | None, int], Problem]] = {
    "nhanes": nhanes,
    "tox21": tox21,
    "qm9-3000": qm9(3000),
    "digits": digits,
    "diabetes": diabetes,
    **{name: development(name) for name in ("adme", "movies", "star")},
}
