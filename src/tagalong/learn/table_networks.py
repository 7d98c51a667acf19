"""The default networks and recipes for tables, which depend on the number of training rows and the kinds of columns."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from .network import MLP, EncoderName
from .piecewise_linear import quantile_edges
from .recipe import Recipe
from .tabm import MEMBERS, TabM, TabMHeads

BINS = 16
MAX_CODES = 2048  # of all columns together
ROWS_PER_BIN = 16
SMALLEST_BATCH, LARGEST_BATCH, STEPS_PER_EPOCH = 32, 256, 16


def default_network(inputs: Tensor, encoder: EncoderName) -> dict[str, Any]:
    """Returns the encoder, head and recipe of a problem.

    Args:
        inputs: the inputs [rows, columns] of the training rows.
        encoder: the kind of network, "mlp" or "tabm".
    """
    columns, recipe = inputs.shape[1], default_recipe(encoder, inputs)
    edges = quantile_edges(inputs, bins_for(inputs))
    if encoder == "tabm":
        chosen = TabM(columns, (128, 128), 0.1, MEMBERS, edges)
        return {"encoder": chosen, "head": TabMHeads(chosen.members), "recipe": recipe}
    return {"encoder": MLP(columns, (128, 128), 0.1, edges), "recipe": recipe}


def default_recipe(encoder: EncoderName, inputs: Tensor) -> Recipe:
    """Returns the recipe of a default network; see `default_network`."""
    return Recipe(
        lr=1.5e-3,
        batch_size=batch_size_for(len(inputs)),
        epochs=400,
        patience=16,
        start_heads="base_rate",
    )


def batch_size_for(rows: int) -> int:
    """Returns a power of two that gives about `STEPS_PER_EPOCH` steps per epoch, if it is neither too small nor large.

    Example:
        >>> [batch_size_for(rows) for rows in (100, 1000, 10_000)]
        [32, 64, 256]
    """
    return min(LARGEST_BATCH, max(SMALLEST_BATCH, 2 ** round(math.log2(max(1, rows) / STEPS_PER_EPOCH))))


def bins_for(inputs: Tensor) -> int:
    """Returns the number of bins of each numeric column: fewer if there are few rows, or very many columns."""
    rows, columns = inputs.shape
    return max(1, min(BINS, rows // ROWS_PER_BIN, MAX_CODES // max(1, columns)))
