"""Grouped multi-task networks with the manners of scikit-learn: `fit`, `predict`, `score`, and no loop to write."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tagalong.learn import Task

from ._missing import missing

try:
    from sklearn.base import ClassifierMixin, RegressorMixin
    from sklearn.metrics import r2_score
except ImportError as error:
    raise missing("sklearn", "scikit-learn") from error

from ._grouped import GroupedMultiTask
from ._grouped_labels import Columns, accuracy, coded_classes, columns_of, mean_score, side_by_side


class GroupedMultiTaskRegressor(RegressorMixin, GroupedMultiTask):
    """Networks for several numbers, grouped if that is worth it.

    `fit` trains what the methods ask for on a part of the rows, compares them on two others, and keeps the networks
    that the verdict recommends: one for all tasks unless a grouping is better beyond noise. See `Study`.

    Args:
        methods: ways of grouping; "mtl", one network for all, is always among them.
        budgets: how many networks there may be, or several such numbers; None: 2, 3 and 4, as far as there are tasks.
        seeds: how many networks of each kind are trained, or their seeds. Fewer than 3 leave the verdict provisional.
        choose: "verdict", or the method whose networks predict whatever the verdict is, such as "tag".
        hidden_sizes: of the layers that the tasks of a network share.
        optimizer: "sgd", "adam" or "adamw".
        lr: its learning rate.
        weight_decay: as the optimiser understands it.
        batch_size: rows of a step.
        epochs: at most so many.
        patience: training stops when the validation loss has not improved for so many epochs.
        validation_fraction: of the rows, that decide when to stop and which grouping is the best.
        test_fraction: of the rows, that judge it.
        options: by method, for example `{"tag": {"every": 1}}`.
        out: a folder for the record of the study, which goes on where it was stopped if `random_state` is the same;
            None: kept in memory only.
        executor: see `Study`.
        device: see `Study`.
        random_state: of the split, the networks and the order of rows.

    Attributes:
        groups_: the networks: what each trains and serves.
        affinity_: who helps whom, as measured; None if no method measured.
        results_: of the study, with table and verdict.
        best_: the networks themselves; `best_.export(folder)` writes them for use without this package.
        task_names_: the columns of `y`.
        n_features_in_: how many features there are.
        feature_names_in_: their names, if `X` was a DataFrame.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(200, 4))
        >>> Y = X @ rng.normal(size=(4, 3))
        >>> Y[::7, 0] = np.nan  # missing labels
        >>> model = GroupedMultiTaskRegressor(epochs=20, random_state=0).fit(X, Y)
        >>> model.predict(X[:5]).shape, model.score(X, Y) > 0.9
        ((5, 3), True)
    """

    _numeric = True

    def _read(self, labels: Columns) -> tuple[list[Task], Columns]:
        return [Task(name, kind="regression") for name in labels], labels

    def predict(self, X: Any) -> NDArray[Any]:
        """Values in the units of `y`: [rows, tasks], or [rows] if `y` was so."""
        return side_by_side(list(self._predicted(X).values()), self._flat)

    def score(self, X: Any, y: Any) -> float:
        """The coefficient of determination, R², where labels are known; the mean over tasks."""
        return mean_score(r2_score, columns_of(y, numeric=True)[0], self._predicted(X))


class GroupedMultiTaskClassifier(ClassifierMixin, GroupedMultiTask):
    """Networks for several labels, each with two classes or more, grouped if that is worth it.

    Parameters and attributes are those of `GroupedMultiTaskRegressor`.

    Attributes:
        classes_: the classes of each task, a list of arrays; one array if `y` is one-dimensional.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(200, 4))
        >>> Y = np.stack([X[:, 0] > 0, X[:, 0] + X[:, 1] > 0, X[:, 2] > 0], axis=1).astype(float)
        >>> Y[::7, 0] = np.nan  # missing labels
        >>> model = GroupedMultiTaskClassifier(epochs=20, random_state=0).fit(X, Y)
        >>> [of_task.shape for of_task in model.predict_proba(X[:5])], model.score(X, Y) > 0.9
        ([(5, 2), (5, 2), (5, 2)], True)
    """

    _numeric = False

    def fit(self, X: Any, y: Any) -> Any:
        super().fit(X, y)
        self.classes_ = self._classes[0] if self._flat else self._classes
        return self

    def _read(self, labels: Columns) -> tuple[list[Task], Columns]:
        classes, codes = coded_classes(labels)
        self._classes = list(classes.values())
        tasks = [
            Task(name) if len(found) == 2 else Task(name, "multiclass", classes=len(found))
            for name, found in classes.items()
        ]
        return tasks, codes

    def predict_proba(self, X: Any) -> Any:
        """Probabilities [rows, classes]: a list with one array for each task, or one array if `y` was flat."""
        found = [_of_every_class(outputs) for outputs in self._predicted(X).values()]
        return found[0] if self._flat else found

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable classes: [rows, tasks], or [rows] if `y` was so."""
        return side_by_side(list(self._likeliest(X).values()), self._flat)

    def score(self, X: Any, y: Any) -> float:
        """The share of right classes where labels are known; the mean over tasks."""
        return mean_score(accuracy, columns_of(y, numeric=False)[0], self._likeliest(X))

    def _likeliest(self, X: Any) -> Columns:
        found = self._predicted(X)
        return {
            name: classes[_of_every_class(outputs).argmax(1)]
            for classes, (name, outputs) in zip(self._classes, found.items(), strict=True)
        }

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


def _of_every_class(outputs: NDArray[Any]) -> NDArray[Any]:
    """Two columns where there is only the probability of label 1."""
    return outputs if outputs.ndim == 2 else np.stack([1 - outputs, outputs], axis=1)
