"""A study behind `fit`: what the estimators with scikit-learn's manners have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from tagalong.affinity import Affinity
from tagalong.learn import Task

from ._grouped_labels import Columns, columns_of
from ._grouped_study import VERDICT, compare

FEWEST_ROWS = 10  # that can be split in three
FLOATS = (np.float64, np.float32)  # networks are trained in the precision of the inputs


class GroupedMultiTask(BaseEstimator):
    """Fits by a study: several ways of grouping are trained, and the networks of the verdict predict."""

    _numeric: bool  # whether labels are numbers, not classes

    def __init__(
        self,
        *,
        methods: Sequence[str] = ("mtl", "stl", "tag"),
        budgets: int | Sequence[int] | None = None,
        seeds: int | Sequence[int] = 3,
        choose: str = VERDICT,
        hidden_sizes: Sequence[int] = (64, 64),
        optimizer: str = "adamw",
        lr: float = 0.01,
        weight_decay: float = 0.01,
        batch_size: int = 64,
        epochs: int = 100,
        patience: int = 10,
        validation_fraction: float = 0.15,
        test_fraction: float = 0.15,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        out: str | Path | None = None,
        executor: Any = "serial",
        device: str = "auto",
        random_state: Any = None,
    ) -> None:
        self.methods, self.budgets, self.seeds, self.choose = methods, budgets, seeds, choose
        self.hidden_sizes, self.optimizer, self.lr, self.weight_decay = hidden_sizes, optimizer, lr, weight_decay
        self.batch_size, self.epochs, self.patience = batch_size, epochs, patience
        self.validation_fraction, self.test_fraction = validation_fraction, test_fraction
        self.options, self.out, self.executor, self.device = options, out, executor, device
        self.random_state = random_state

    @abstractmethod
    def _read(self, labels: Columns) -> tuple[list[Task], Columns]:
        """The tasks, and their labels as numbers with NaN where missing."""

    def fit(self, X: Any, y: Any) -> Any:
        """Trains the networks of every method, and keeps those that the verdict recommends.

        Args:
            X: [rows, features], an array or a DataFrame.
            y: [rows, tasks], or [rows] for one task; NaN (for classes None, too) where a label is missing. The columns
                of a DataFrame name the tasks; others are called "0", "1", ….
        """
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        inputs = validate_data(self, X, dtype=FLOATS, order="C", ensure_min_samples=FEWEST_ROWS)
        labels, flat = columns_of(y, self._numeric)
        check_consistent_length(inputs, *labels.values())
        tasks, targets = self._read(labels)
        draw = check_random_state(self.random_state)
        seeds = int(draw.randint(2**31 - 1)), int(draw.randint(2**31 - 1))
        with TemporaryDirectory(prefix="tagalong-") as folder:
            out = Path(folder if self.out is None else self.out)
            self.results_, self.best_ = compare(self, inputs, tasks, targets, out, seeds)
            measured = out / "affinity.json"
            self.affinity_ = Affinity.load(measured) if measured.exists() else None
        if self.out is None:
            self.results_.out = None
        self.groups_, self.task_names_, self._flat = self.best_.groups, tuple(labels), flat
        return self

    def _predicted(self, X: Any) -> Columns:
        check_is_fitted(self, "best_")
        inputs = validate_data(self, X, dtype=FLOATS, order="C", reset=False)
        return self.best_.predict(torch.tensor(inputs))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
