"""How to scale the numbers of tables for networks: test skill of one MLP for all tasks, by table, split and scaling.

python benchmarks/table_preparation.py FOLDER    # which contains adme/adme.csv.gz, movies/… and star/…
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, QuantileTransformer, StandardScaler

from tagalong import Problem
from tagalong.learn import Job, constant_scores, train
from tagalong.learn.preparation import squash_numbers
from tagalong.learn.table_networks import default_network

ROWS, SPLITS = 6000, 2
TEXTS = ("smiles", "title")


def smooth(train, values):
    """As `Table` does: on the scale of the quartiles, clipped smoothly, and standardized."""
    low, middle, high = np.nanquantile(train, [0.25, 0.5, 0.75], axis=0)
    spread = np.where(high > low, (high - low) / 1.349, np.nanstd(train, axis=0))
    spread = np.where(spread > 0, spread, 1)
    filled = np.where(np.isnan(train), middle, train)
    squashed, fitted = squash_numbers((values - middle) / spread), squash_numbers((filled - middle) / spread)
    return (squashed - fitted.mean(0)) / np.where(fitted.std(0) > 0, fitted.std(0), 1)


def standard(train, values):
    return StandardScaler().fit(train).transform(values)


def quantile(train, values):
    points = int(np.clip(len(train) // 30, 10, 1000))
    return QuantileTransformer(n_quantiles=points, output_distribution="normal").fit(train).transform(values)


SCALINGS = {"standard": standard, "smooth": smooth, "quantile": quantile}


def main(folder: Path) -> None:
    for name in ("adme", "movies", "star"):
        table = pd.read_csv(folder / name / f"{name}.csv.gz")
        table = table.sample(min(ROWS, len(table)), random_state=0).reset_index(drop=True)
        targets = {column: table.pop(column).to_numpy(float) for column in list(table) if column.startswith("y_")}
        table = table.drop(columns=[column for column in TEXTS if column in table])
        numbers, texts = table.select_dtypes("number"), table.select_dtypes(exclude="number").astype(str)
        for seed in range(SPLITS):
            order = np.random.default_rng(seed).permutation(len(table))
            split = np.split(order, [int(0.6 * len(table)), int(0.8 * len(table))])
            imputer = SimpleImputer(strategy="median", add_indicator=True).fit(numbers.iloc[split[0]])
            filled = imputer.transform(numbers)
            levels = OneHotEncoder(max_categories=50, handle_unknown="infrequent_if_exist", sparse_output=False)
            encoded = levels.fit(texts.iloc[split[0]]).transform(texts)
            start = Problem.from_arrays(filled, targets, list(targets), split=split)
            skills = {}
            for scaling, scale in SCALINGS.items():
                columns = numbers.shape[1]
                scaled = scale(numbers.to_numpy()[split[0]], filled[:, :columns])
                inputs = torch.tensor(np.hstack([scaled, filled[:, columns:], encoded])).float()
                parts = {
                    part: replace(rows, inputs=inputs[torch.as_tensor(numbers_of_rows)])
                    for (part, rows), numbers_of_rows in zip(start.splits.items(), split, strict=True)
                }
                network = default_network(parts["train"].inputs, "mlp")
                problem = replace(start, **parts, **network)
                scores, constants = train(problem, Job(problem.names)).test, constant_scores(problem, "test")
                skills[scaling] = np.mean([100 * (1 - scores[task].loss / constants[task].loss) for task in scores])
            print(f"{name} split {seed}: " + ", ".join(f"{scaling} {skill:.2f}" for scaling, skill in skills.items()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
