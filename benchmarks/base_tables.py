"""Tables on which the default networks for tables are chosen and judged.

The rule that chooses a network is chosen on `CHOOSING` tables and judged on other splits of these, and on `JUDGING`
tables, which were not looked at before.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tagalong.learn import Problem, Task
from tagalong.problems import load_problem
from truth_problems import nhanes, tox21

DEVELOPMENT_ROWS, NOT_INPUTS = 7000, ["title", "smiles", "split"]
HOLES = (1, 0, 0, 0, 1, 0, 1, 0, 2, 1)  # in each digit, as written by hand
Array = NDArray[np.float64]


def regressions(*names: str) -> list[Task]:
    """Returns regression tasks."""
    return [Task(name, kind="regression") for name in names]


def diabetes(data: Path | None, seed: int) -> Problem:
    """442 patients: the progression of their disease, body mass index and blood pressure."""
    from sklearn.datasets import load_diabetes

    frame = load_diabetes(as_frame=True, scaled=False).frame
    return Problem.from_table(frame, regressions("target", "bmi", "bp"), seed=seed)


def wine(data: Path | None, seed: int) -> Problem:
    """178 wines: the grower, and three of the measurements."""
    from sklearn.datasets import load_wine

    frame = load_wine(as_frame=True).frame
    grower = Task("target", kind="multiclass", classes=3)
    return Problem.from_table(frame, [grower, *regressions("proline", "color_intensity", "alcohol")], seed=seed)


def breast_cancer(data: Path | None, seed: int) -> Problem:
    """569 tumors: the diagnosis, and the worst cell's area, texture and concavity, from means and errors."""
    from sklearn.datasets import load_breast_cancer

    frame = load_breast_cancer(as_frame=True).frame
    targets = ("worst area", "worst texture", "worst concave points")
    others = [name for name in frame.columns if name.startswith("worst") and name not in targets]
    return Problem.from_table(frame, [Task("target"), *regressions(*targets)], ignore=others, seed=seed)


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


def friedman(data: Path | None, seed: int) -> Problem:
    """Four targets on ten uniform features: Friedman's first function, its features shuffled, steps, and a class."""
    draw = np.random.default_rng(seed)
    x = draw.uniform(size=(3000, 10))

    def first(x: Array) -> Array:
        return 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]

    steps = np.floor(4 * x[:, 0]) - 2 * (x[:, 3] > 0.6) * (x[:, 5] < 0.3) + np.floor(3 * x[:, 6])
    values = {
        "first": first(x) + draw.normal(size=len(x)),
        "shuffled": first(x[:, [3, 5, 0, 1, 7]]) + draw.normal(size=len(x)),
        "steps": steps + 0.5 * draw.normal(size=len(x)),
        "high": (first(x) + 3 * draw.normal(size=len(x)) > 18).astype(float),
    }
    return Problem.from_arrays(x, values, [*regressions(*list(values)[:3]), Task("high")], name="friedman", seed=seed)


def clusters(data: Path | None, seed: int) -> Problem:
    """Twelve Gaussian clusters in six of 20 features: a class of five, a class of two, and the distance to one."""
    draw = np.random.default_rng(seed)
    centers, members = 2.2 * draw.normal(size=(12, 6)), draw.integers(0, 12, 4000)
    signal = centers[members] + draw.normal(size=(4000, 6))
    mixed = np.hstack([signal, signal @ draw.normal(size=(6, 6)), draw.normal(size=(4000, 8))])
    labels = {
        "class": members % 5,
        "half": (members >= 6).astype(float),
        "distance": np.linalg.norm(signal - centers[0], axis=1) + 0.5 * draw.normal(size=4000),
    }
    tasks = [Task("class", "multiclass", classes=5), Task("half"), *regressions("distance")]
    return Problem.from_arrays(mixed, labels, tasks, name="clusters", seed=seed)


def skewed(data: Path | None, seed: int) -> Problem:
    """Twelve log-normal columns and three categories: two amounts, a rare event, and a class of four."""
    draw = np.random.default_rng(seed)
    amounts = np.exp(1.5 * draw.normal(size=(5000, 12)))
    kinds = draw.integers(0, [3, 5, 8], size=(5000, 3))
    logs = np.log(amounts)
    by_kind = draw.normal(size=8)[kinds[:, 2]]
    score = np.where(kinds[:, 0] == 0, logs[:, 0], -logs[:, 1]) + (logs[:, 2] > 1) + by_kind
    columns = {f"amount {k}": amounts[:, k] for k in range(12)}
    columns |= {f"kind {k}": kinds[:, k].astype(str) for k in range(3)}
    columns |= {
        "cost": score + np.sin(2 * logs[:, 3]) + 0.5 * draw.normal(size=5000),
        "delay": np.maximum(logs[:, 4], logs[:, 5]) + by_kind + 0.5 * draw.normal(size=5000),
        "event": score + 0.5 * logs[:, 6] + draw.normal(size=5000) > 3.3,
        "class": (logs[:, 7] + 0.3 * draw.normal(size=5000) > 0) * 2 + (logs[:, 8] * logs[:, 9] > 0.3),
    }
    tasks = [*regressions("cost", "delay"), Task("event"), Task("class", "multiclass", classes=4)]
    return Problem.from_table(columns, tasks, categorical=[f"kind {k}" for k in range(3)], name="skewed", seed=seed)


def qm9(rows: int) -> Callable[[Path | None, int], Problem]:
    """Returns a loader for small molecules."""
    return lambda data, seed: load_problem("qm9", rows=rows, seed=seed, data=data and data / "qm9")


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


CHOOSING: Mapping[str, Callable[[Path | None, int], Problem]] = {
    "nhanes": nhanes,
    "qm9-3000": qm9(3000),
    "tox21": tox21,
    "digits": digits,
    "friedman": friedman,
    "diabetes": diabetes,
}
JUDGING: Mapping[str, Callable[[Path | None, int], Problem]] = {
    "qm9-12000": qm9(12_000),
    "breast_cancer": breast_cancer,
    "wine": wine,
    "clusters": clusters,
    "skewed": skewed,
}
DEVELOPMENT = {name: development(name) for name in ("adme", "movies", "star")}
TABLES = {**CHOOSING, **JUDGING, **DEVELOPMENT}
