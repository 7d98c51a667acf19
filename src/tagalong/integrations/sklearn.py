"""Scikit-learn estimators that train grouped multi-task networks."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils import check_array, check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from tagalong.affinity import Affinity
from tagalong.errors import InvalidInput, is_positive_integer, one_of, raise_problems, task_name_problems
from tagalong.learn import MLP, Problem, Recipe, Task
from tagalong.study import Best, Results, Study

Columns = dict[str, NDArray[Any]]
RECIPE_PARAMETERS = ("optimizer", "lr", "weight_decay", "batch_size", "epochs", "patience")
VERDICT = "verdict"
MIN_ROWS = 10  # to have rows for training, validation and test
FLOAT_DTYPES = (np.float64, np.float32)  # networks are trained in the precision of the inputs


class GroupedMultiTask(BaseEstimator):
    """Compares grouping methods in a study, and makes predictions with the networks that the verdict recommends."""

    _numeric: bool  # whether labels are numbers rather than classes

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
    def _read_tasks(self, labels: Columns) -> tuple[list[Task], Columns]:
        """Returns the tasks and their labels as numbers. Missing labels are NaN."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Trains the networks of every method and keeps the networks that the verdict recommends.

        Args:
            X: The features [rows, features], as an array or a DataFrame.
            y: The labels [rows, tasks], or [rows] for a single task. Missing labels are NaN, or None for classes. If
                `y` is a DataFrame, its columns are the task names. Otherwise, tasks are named "0", "1", ….
            sample_weight: The weight of each row in the losses and scores. If None, all rows count the same.
        """
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        inputs = validate_data(self, X, dtype=FLOAT_DTYPES, order="C", ensure_min_samples=MIN_ROWS)
        labels, flat = _label_columns(y, self._numeric)
        check_consistent_length(inputs, *labels.values())
        if sample_weight is not None:
            sample_weight = column_or_1d(sample_weight, dtype=np.float64)
            check_consistent_length(inputs, sample_weight)
            used = sample_weight != 0  # so that every class and every part of the split has rows that count
            if not used.any():
                raise ValueError("sample_weight must not be zero for all rows")
            inputs, sample_weight = inputs[used], sample_weight[used]
            labels = {name: column[used] for name, column in labels.items()}
        tasks, targets = self._read_tasks(labels)
        draw = check_random_state(self.random_state)
        seeds = int(draw.randint(2**31 - 1)), int(draw.randint(2**31 - 1))
        with TemporaryDirectory(prefix="tagalong-") as folder:
            out = Path(folder if self.out is None else self.out)
            self.results_, self.best_ = _run_study(self, inputs, tasks, targets, sample_weight, out, seeds)
            measured = out / "affinity.json"
            self.affinity_ = Affinity.load(measured) if measured.exists() else None
        if self.out is None:
            self.results_.out = None
        self.groups_, self.task_names_, self._flat = self.best_.groups, tuple(labels), flat
        return self

    def _predict_outputs(self, X: Any) -> Columns:
        check_is_fitted(self, "best_")
        inputs = validate_data(self, X, dtype=FLOAT_DTYPES, order="C", reset=False)
        return self.best_.predict(torch.tensor(inputs))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class GroupedMultiTaskRegressor(RegressorMixin, GroupedMultiTask):
    """Multi-output regression with neural networks. Tasks are grouped if this improves the results.

    `fit` trains the networks of each method on the training rows and compares them on the validation and test rows. It
    keeps one network for all tasks unless a grouping is significantly better. See `Study` for details.

    Args:
        methods: grouping methods to compare. "mtl" (one network for all tasks) is always included.
        budgets: maximum number of networks, or a list of such limits. Defaults to 2, 3 and 4, up to the number of
            tasks.
        seeds: number of seeds, or a list of seeds. Every network is trained once per seed. With one seed, the
            interval of the gain is unknown.
        choose: which networks to use for predictions. "verdict" uses the recommended networks. A method name, such as
            "tag", selects the networks of that method.
        hidden_sizes: sizes of the hidden layers, which are shared by all tasks of a network.
        optimizer: "sgd", "adam" or "adamw".
        lr: learning rate.
        weight_decay: weight decay, as defined by the optimizer.
        batch_size: number of rows per step.
        epochs: maximum number of epochs.
        patience: number of epochs without improvement in the validation loss after which training stops.
        validation_fraction: fraction of the rows used for early stopping and for choosing the best grouping.
        test_fraction: fraction of the rows used to evaluate the best grouping.
        options: options for each method, for example `{"tag": {"every": 1}}`.
        out: folder in which the study is saved. The study can be resumed with the same `random_state`. If None, results
            are kept in memory only.
        executor: where networks are trained (see `Study`).
        device: device on which networks are trained (see `Study`).
        random_state: seed for the split, the network initialization and the row order.

    Attributes:
        groups_: the chosen groups, with the trained and served tasks of each network.
        affinity_: the measured affinity, or None if no method measures one.
        results_: the results of the study, including the table and the verdict.
        best_: the trained networks. `best_.export(folder)` exports them for use without this package.
        task_names_: the names of the tasks.
        n_features_in_: the number of features.
        feature_names_in_: the names of the features, if `X` was a DataFrame.

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

    def _read_tasks(self, labels: Columns) -> tuple[list[Task], Columns]:
        return [Task(name, kind="regression") for name in labels], labels

    def predict(self, X: Any) -> NDArray[Any]:
        """Returns predictions in the units of `y`.

        Their shape is [rows, tasks], or [rows] if `y` was one-dimensional.
        """
        return _stack_columns(list(self._predict_outputs(X).values()), self._flat)

    def score(self, X: Any, y: Any) -> float:
        """Returns the coefficient of determination (R²) on the labeled rows, averaged over tasks."""
        return _mean_score(r2_score, _label_columns(y, numeric=True)[0], self._predict_outputs(X))


class GroupedMultiTaskClassifier(ClassifierMixin, GroupedMultiTask):
    """Multi-output classification with neural networks. Tasks are grouped if this improves the results.

    Each task has two or more classes. Parameters and attributes are the same as for `GroupedMultiTaskRegressor`.

    Attributes:
        classes_: the classes of each task, as a list of arrays. If `y` is one-dimensional, this is a single array.

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

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        super().fit(X, y, sample_weight)
        self.classes_ = self._classes[0] if self._flat else self._classes
        return self

    def _read_tasks(self, labels: Columns) -> tuple[list[Task], Columns]:
        classes, codes = _encode_classes(labels)
        self._classes = list(classes.values())
        tasks = [
            Task(name) if len(found) == 2 else Task(name, "multiclass", classes=len(found))
            for name, found in classes.items()
        ]
        return tasks, codes

    def predict_proba(self, X: Any) -> Any:
        """Returns the class probabilities [rows, classes] of each task as a list of arrays.

        If `y` was one-dimensional, a single array is returned.
        """
        probabilities = [_class_probabilities(outputs) for outputs in self._predict_outputs(X).values()]
        return probabilities[0] if self._flat else probabilities

    def predict(self, X: Any) -> NDArray[Any]:
        """Returns the most probable classes. Their shape is [rows, tasks], or [rows] if `y` was one-dimensional."""
        return _stack_columns(list(self._predict_classes(X).values()), self._flat)

    def score(self, X: Any, y: Any) -> float:
        """Returns the accuracy on the labeled rows, averaged over tasks."""
        return _mean_score(_accuracy, _label_columns(y, numeric=False)[0], self._predict_classes(X))

    def _predict_classes(self, X: Any) -> Columns:
        predicted = self._predict_outputs(X).items()
        return {
            name: classes[_class_probabilities(outputs).argmax(1)]
            for classes, (name, outputs) in zip(self._classes, predicted, strict=True)
        }

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


def _run_study(
    estimator: Any,
    inputs: NDArray[Any],
    tasks: Sequence[Task],
    targets: Columns,
    sample_weight: Any,
    out: Path,
    seeds: tuple[int, int],  # of the split, and of the first network
) -> tuple[Results, Best]:
    val, test = estimator.validation_fraction, estimator.test_fraction
    if not (val > 0 and test > 0 and val + test < 1):
        both = "`validation_fraction` and `test_fraction`"
        raise InvalidInput(both, "must be positive and sum to less than 1", f"{val!r} and {test!r}")
    methods = [str(getattr(method, "name", method)) for method in _as_list(estimator.methods)]
    # `random` is an average over many groupings.
    choices = dict.fromkeys([VERDICT, "mtl", *(name for name in methods if name != "random")])
    if estimator.choose not in choices:
        raise InvalidInput("choose", one_of(choices), repr(estimator.choose))
    sizes = _as_list(estimator.hidden_sizes)
    if not sizes or not all(is_positive_integer(size) for size in sizes):
        raise InvalidInput("hidden_sizes", "must be a list of positive integers", repr(estimator.hidden_sizes))

    settings = {name: _to_python(getattr(estimator, name)) for name in RECIPE_PARAMETERS}
    problem = Problem.from_arrays(
        torch.tensor(inputs),
        targets,
        tasks,
        encoder=MLP(inputs.shape[1], sizes),
        recipe=Recipe(**settings),
        split=(1 - val - test, val, test),
        seed=seeds[0],
        sample_weight=sample_weight,
    )
    budgets, count = _to_python(estimator.budgets), _to_python(estimator.seeds)
    study = Study(problem, out, executor=estimator.executor, device=estimator.device)
    results = study.run(
        estimator.methods,
        [budgets] if isinstance(budgets, int) else budgets,
        range(seeds[1], seeds[1] + count) if isinstance(count, int) else count,
        options=estimator.options,
    )
    return results, study.best(*_choose_networks(results, estimator.choose))


def _choose_networks(results: Results, choose: str) -> tuple[str | None, int | None]:
    """Returns the chosen method and its best budget on validation data, or None for both to follow the verdict."""
    if choose == VERDICT:
        return None, None
    candidates = [line for line in results.table() if line.method == choose]
    # The skill is None if training diverged.
    best = max(candidates, key=lambda line: -math.inf if line.validation is None else line.validation)
    return best.label


def _as_list(value: Any) -> list[Any]:
    """Converts an iterable to a list. Strings and values that are not iterable give an empty list."""
    return [] if isinstance(value, str) or not isinstance(value, Iterable) else list(value)


def _to_python(value: Any) -> Any:
    """Converts NumPy scalars, which may come from parameter searches, to Python numbers."""
    return value.item() if isinstance(value, np.generic) else value


def _label_columns(y: Any, numeric: bool) -> tuple[Columns, bool]:
    """Returns a mapping from task names to labels, and whether `y` is one-dimensional.

    Args:
        y: the labels [rows, tasks] or [rows]. Missing labels are NaN.
        numeric: whether labels are numbers rather than classes.
    """
    wanted = np.float64 if numeric else None
    array = check_array(y, dtype=wanted, ensure_2d=False, ensure_all_finite="allow-nan", input_name="y")
    if array.ndim == 1:
        return {str(getattr(y, "name", None) or 0): array}, True
    names = [str(name) for name in (y.columns if hasattr(y, "columns") else range(array.shape[1]))]
    raise_problems(task_name_problems(tuple(names), "the columns of `y`"))
    return dict(zip(names, array.T, strict=True)), False


def _encode_classes(labels: Columns) -> tuple[dict[str, NDArray[Any]], Columns]:
    """Returns the classes of each task, and the labels as class indices. Missing labels are NaN."""
    classes, codes = {}, {}
    for name, column in labels.items():
        here = _labeled_rows(column)
        present = np.array(column[here].tolist()) if column.dtype == object else column[here]
        check_classification_targets(present)
        classes[name], numbers = np.unique(present, return_inverse=True)
        if len(classes[name]) < 2:
            raise InvalidInput("`y`:", f"{name!r} must have at least two classes", str(len(classes[name])))
        codes[name] = np.full(len(column), np.nan)
        codes[name][here] = numbers
    return classes, codes


def _labeled_rows(column: NDArray[Any]) -> NDArray[np.bool_]:
    import pandas as pd

    labels = pd.Series(column.tolist(), dtype=object)
    return np.asarray(labels.notna() & (labels.astype(str).str.strip() != ""))


def _stack_columns(columns: list[NDArray[Any]], one_dimensional: bool) -> NDArray[Any]:
    """Stacks the columns of all tasks. If their dtypes differ in kind, the result is an array of objects."""
    if one_dimensional:
        return columns[0]
    alike = len({column.dtype.kind for column in columns}) == 1
    return np.stack(columns if alike else [column.astype(object) for column in columns], axis=1)


def _class_probabilities(outputs: NDArray[Any]) -> NDArray[Any]:
    """Returns probabilities [rows, classes]. For binary tasks, a column for class 0 is added."""
    return outputs if outputs.ndim == 2 else np.stack([1 - outputs, outputs], axis=1)


def _mean_score(score: Callable[..., float], labels: Columns, predictions: Columns) -> float:
    if len(labels) != len(predictions):
        raise InvalidInput("y", f"must have {len(predictions)} columns, as in the call to fit()", str(len(labels)))
    scores = []
    for column, predicted in zip(labels.values(), predictions.values(), strict=True):
        here = _labeled_rows(column)
        if here.any():
            scores.append(score(column[here], predicted[here]))
    if not scores:
        raise InvalidInput("y", "must contain at least one label to compute a score", "none")
    return float(np.mean(scores))


def _accuracy(labels: NDArray[Any], predictions: NDArray[Any]) -> float:
    # As objects, since NumPy strings have a fixed length.
    return float(np.mean(labels.astype(object) == predictions.astype(object)))
