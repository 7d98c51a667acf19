"""
Run a study through scikit-learn's `fit` and `predict`, in a pipeline, with missing labels.

$ python examples/with_sklearn.py

The tasks are to predict two thermometers and two hygrometers, with missing readings. Is one network for all four best?
`fit` tries one network, four networks and two groups, and keeps what the verdict recommends.
"""

import argparse

import numpy as np
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import QuantileTransformer

from tagalong.integrations.sklearn import GroupedMultiTaskRegressor

parser = argparse.ArgumentParser(description="Grouped multi-task networks as a scikit-learn estimator.")
parser.add_argument("--steps", type=int, default=200, help="maximum number of training steps")
args = parser.parse_args()

# -----------------------------------------------------------------------------
# data: 12 inputs, two instruments of each kind; a tenth of the labels are missing
rng = np.random.default_rng(0)
X = rng.normal(size=(800, 12))
heat, water = np.tanh(X[:, :6] @ rng.normal(size=6)), np.tanh(X[:, 6:] @ rng.normal(size=6))
Y = np.stack([heat, 1.8 * heat + 0.3, water, -water], axis=1) + 0.1 * rng.normal(size=(800, 4))
Y[rng.random(Y.shape) < 0.1] = np.nan
X, new_X, Y, new_Y = train_test_split(X, Y, test_size=0.25, random_state=0)

# -----------------------------------------------------------------------------
# the networks are small so that tasks compete for capacity
model = make_pipeline(
    QuantileTransformer(n_quantiles=100, output_distribution="normal"),
    GroupedMultiTaskRegressor(
        budgets=2, seeds=3, hidden_sizes=(4,), lr=0.05, batch_size=32, epochs=max(1, args.steps // 13), random_state=0
    ),
)
model.fit(X, Y)
grouped = model[-1]
print(grouped.affinity_)
print(grouped.results_)
print(f"R² on new rows: {model.score(new_X, new_Y):.2f}, by {len(grouped.groups_)} networks")
