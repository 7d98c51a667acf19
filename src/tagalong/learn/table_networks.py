"""The default networks and recipes for tables, which depend on the number of training rows and the kinds of columns.

`benchmarks/README.md` says on which tables they were chosen, and how they compare with boosting.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from .network import MLP, Encoder, EncoderName
from .piecewise_linear import count_bins, quantile_edges
from .recipe import Recipe
from .tabm import MEMBERS, TabM, TabMHeads, task_problems
from .task import Task

UNITS = 128
BINS = {"mlp": 3, "tabm": 16}  # of each numeric column
ROWS_PER_CODE = {"mlp": 30, "tabm": 8}  # of the training rows, at least
MANY_COLUMNS, FEW_NUMBERS = 200, 0.1
SMALLEST_BATCH, LARGEST_BATCH, STEPS_PER_EPOCH = 32, 256, 16
EPOCHS = 400
PATIENCE = {"mlp": 16, "tabm": 8}  # more epochs of TabM cost more than they gain (benchmarks/README.md)
MLP_RATE, TABM_RATE = 1e-3, 4e-3
DURATION_SETTINGS = ("batch_size", "epochs", "patience")  # of a recipe: how long to train


@dataclass(frozen=True, eq=False)
class ChosenNetwork:
    """An MLP that was chosen for a table, for which a TabM network is an alternative.

    Attributes:
        encoder: the encoder of the MLP.
        recipe: its recipe.
        inputs: the inputs [rows, columns] of the training rows for which both were chosen.
    """

    encoder: Encoder
    recipe: Recipe
    inputs: Tensor

    def is_used(self, encoder: Encoder, head: Callable[[Task, int], nn.Module] | None, recipe: Recipe) -> bool:
        """Returns whether a problem still has this network and recipe, apart from settings of how long to train."""
        own = {name: getattr(self.recipe, name) for name in DURATION_SETTINGS}
        return encoder is self.encoder and head is None and replace(recipe, **own) == self.recipe

    def tabm(self, recipe: Recipe) -> dict[str, Any]:
        """Returns the encoder, head and recipe of a TabM network; `recipe` may say how long to train it."""
        network, changed = default_network(self.inputs, "tabm"), {}
        for name in DURATION_SETTINGS:
            if getattr(recipe, name) != getattr(self.recipe, name):
                changed[name] = getattr(recipe, name)
        return network | {"recipe": replace(network["recipe"], **changed)}


def default_network(inputs: Tensor, encoder: EncoderName) -> dict[str, Any]:
    """Returns the encoder, head and recipe of a problem, and the network to which there is an alternative.

    Numeric columns get piecewise-linear codes if there are at least `ROWS_PER_CODE` training rows for each code;
    otherwise, a network would learn them by heart. An MLP has only a few codes per column, since more of them help on
    some tables and hurt on others. An MLP for fingerprints, i.e. hundreds of columns that mostly have only two values,
    has one hidden layer and more dropout.

    Args:
        inputs: the inputs [rows, columns] of the training rows.
        encoder: the kind of network, "mlp" or "tabm".
    """
    columns, recipe = inputs.shape[1], default_recipe(inputs, encoder)
    edges = quantile_edges(inputs, BINS[encoder])
    if count_bins(edges) * ROWS_PER_CODE[encoder] > len(inputs):
        edges = ()
    if encoder == "tabm":
        return {
            "encoder": TabM(columns, (UNITS, UNITS), 0.1, MEMBERS, edges),
            "head": TabMHeads(MEMBERS),
            "recipe": recipe,
        }
    hidden, dropout = ((UNITS,), 0.3) if is_fingerprint(inputs) else ((UNITS, UNITS), 0.1)
    mlp = MLP(columns, hidden, dropout, edges)
    return {"encoder": mlp, "recipe": recipe, "chosen_network": ChosenNetwork(mlp, recipe, inputs)}


def default_encoder(tasks: Iterable[Task]) -> EncoderName:
    """Returns the kind of network that tables get by default: TabM, unless a task is custom or has its own head."""
    return "mlp" if task_problems(tasks) else "tabm"


def default_recipe(inputs: Tensor, encoder: EncoderName) -> Recipe:
    """Returns the recipe of a default network; see `default_network`."""
    rate = TABM_RATE if encoder == "tabm" else MLP_RATE
    batch_size = batch_size_for(len(inputs))
    return Recipe(lr=rate, batch_size=batch_size, epochs=EPOCHS, patience=PATIENCE[encoder], start_heads="base_rate")


def is_fingerprint(inputs: Tensor) -> bool:
    """Returns whether there are many columns, and few of them have more than two values."""
    columns = inputs.unbind(1)
    return len(columns) >= MANY_COLUMNS and sum(len(one.unique()) > 2 for one in columns) < FEW_NUMBERS * len(columns)


def batch_size_for(rows: int) -> int:
    """Returns a power of two that gives about `STEPS_PER_EPOCH` steps per epoch, if it is neither too small nor large.

    Example:
        >>> [batch_size_for(rows) for rows in (100, 1000, 10_000)]
        [32, 64, 256]
    """
    wanted = round(math.log2(max(1, rows) / STEPS_PER_EPOCH))
    return min(LARGEST_BATCH, max(SMALLEST_BATCH, 1 << max(0, wanted)))
