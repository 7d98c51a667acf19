"""Grouped multi-task networks as scikit-learn estimators, with `fit`, `predict` and `score`."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tagalong.affinity import Affinity
from tagalong.errors import (
    InvalidInput,
    collect,
    is_positive_integer,
    missing_package,
    raise_problems,
    task_name_problems,
)
from tagalong.learn import MLP, Problem, Recipe, Task, is_missing
from tagalong.study import Best, Results, Study

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.metrics import r2_score
    from sklearn.utils import check_array, check_consistent_length, check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise missing_package(__name__, "scikit-learn", "tagalong[sklearn]") from error

Columns = dict[str, NDArray[Any]]
RECIPE = ("optimizer", "lr", "weight_decay", "batch_size", "epochs", "patience")
VERDICT = "verdict"
MIN_ROWS = 10  # to have rows for training, validation and test
FLOATS = (np.float64, np.float32)  # networks are trained in the precision of the inputs


class GroupedMultiTask(BaseEstimator):
    """Compares grouping methods in a study, and predicts with the networks that the verdict recommends."""

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
    def _read(self, labels: Columns) -> tuple[list[Task], Columns]:
        """Returns the tasks, and their labels as numbers, NaN if missing."""

    def fit(self, X: Any, y: Any) -> Any:
        """Trains the networks of every method, and keeps those that the verdict recommends.

        Args:
            X: The features [rows, features], an array or a DataFrame.
            y: The labels [rows, tasks], or [rows] for one task; NaN (or None, for classes) if a label is missing. Tasks
                are named after the columns of a DataFrame; otherwise they are called "0", "1", ….
        """
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        inputs = validate_data(self, X, dtype=FLOATS, order="C", ensure_min_samples=MIN_ROWS)
        labels, flat = _columns_of(y, self._numeric)
        check_consistent_length(inputs, *labels.values())
        tasks, targets = self._read(labels)
        draw = check_random_state(self.random_state)
        seeds = int(draw.randint(2**31 - 1)), int(draw.randint(2**31 - 1))
        with TemporaryDirectory(prefix="tagalong-") as folder:
            out = Path(folder if self.out is None else self.out)
            self.results_, self.best_ = _run_study(self, inputs, tasks, targets, out, seeds)
            measured = out / "affinity.json"
            self.affinity_ = Affinity.load(measured) if measured.exists() else None
        if self.out is None:
            self.results_.out = None
        self.groups_, self.task_names_, self._flat = self.best_.groups, tuple(labels), flat
        return self

    def _predict_outputs(self, X: Any) -> Columns:
        check_is_fitted(self, "best_")
        inputs = validate_data(self, X, dtype=FLOATS, order="C", reset=False)
        return self.best_.predict(torch.tensor(inputs))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class GroupedMultiTaskRegressor(RegressorMixin, GroupedMultiTask):
    """Multi-target regression with neural networks, which are grouped if that is worth it.

    `fit` trains the networks of each method on the training rows, compares them on validation and test rows, and keeps
    the networks that the verdict recommends: one network for all tasks, unless a grouping is significantly better. See
    `Study`.

    Args:
        methods: grouping methods to compare; "mtl", one network for all tasks, is always included.
        budgets: the maximum number of networks, or a list of such numbers; None means 2, 3 and 4, up to the number of
            tasks.
        seeds: the number of networks to train of each kind, or their seeds. With fewer than 3, the verdict is
            provisional.
        choose: "verdict", or the name of a method, such as "tag", to predict with regardless of the verdict.
        hidden_sizes: sizes of the hidden layers that the tasks of a network share.
        optimizer: "sgd", "adam" or "adamw".
        lr: learning rate.
        weight_decay: weight decay, as defined by the optimizer.
        batch_size: number of rows per step.
        epochs: maximum number of epochs.
        patience: number of epochs without improvement of the validation loss after which training stops.
        validation_fraction: fraction of the rows used to decide when to stop and which grouping is best.
        test_fraction: fraction of the rows used to evaluate that grouping.
        options: options by method, for example `{"tag": {"every": 1}}`.
        out: folder in which to save the study, so that it can be continued with the same `random_state`; None keeps
            it in memory only.
        executor: where networks are trained; see `Study`.
        device: device to train on; see `Study`.
        random_state: seed for the split, the network initialization and the row order.

    Attributes:
        groups_: the chosen groups: which tasks each network trains and serves.
        affinity_: the measured affinity; None if no method measured one.
        results_: the results of the study, with table and verdict.
        best_: the trained networks; `best_.export(folder)` exports them for use without this package.
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

    def _read(self, labels: Columns) -> tuple[list[Task], Columns]:
        return [Task(name, kind="regression") for name in labels], labels

    def predict(self, X: Any) -> NDArray[Any]:
        """Returns values in the units of `y`: [rows, tasks], or [rows] if `y` was one-dimensional."""
        return _stack_columns(list(self._predict_outputs(X).values()), self._flat)

    def score(self, X: Any, y: Any) -> float:
        """Returns the coefficient of determination, R², on the labeled rows, averaged over tasks."""
        return _mean_score(r2_score, _columns_of(y, numeric=True)[0], self._predict_outputs(X))


class GroupedMultiTaskClassifier(ClassifierMixin, GroupedMultiTask):
    """Multi-output classification with neural networks, which are grouped if that is worth it.

    Each task has two or more classes. Parameters and attributes are those of `GroupedMultiTaskRegressor`.

    Attributes:
        classes_: the classes of each task, a list of arrays, or a single array if `y` is one-dimensional.

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
        classes, codes = _encode_classes(labels)
        self._classes = list(classes.values())
        tasks = [
            Task(name) if len(found) == 2 else Task(name, "multiclass", classes=len(found))
            for name, found in classes.items()
        ]
        return tasks, codes

    def predict_proba(self, X: Any) -> Any:
        """Returns probabilities [rows, classes]: a list of arrays by task, or one array if `y` was one-dimensional."""
        found = [_class_probabilities(outputs) for outputs in self._predict_outputs(X).values()]
        return found[0] if self._flat else found

    def predict(self, X: Any) -> NDArray[Any]:
        """Returns the most probable classes: [rows, tasks], or [rows] if `y` was one-dimensional."""
        return _stack_columns(list(self._predict_classes(X).values()), self._flat)

    def score(self, X: Any, y: Any) -> float:
        """Returns the accuracy on the labeled rows, averaged over tasks."""
        return _mean_score(_accuracy, _columns_of(y, numeric=False)[0], self._predict_classes(X))

    def _predict_classes(self, X: Any) -> Columns:
        found = self._predict_outputs(X)
        return {
            name: classes[_class_probabilities(outputs).argmax(1)]
            for classes, (name, outputs) in zip(self._classes, found.items(), strict=True)
        }

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


def _run_study(
    estimator: Any, inputs: NDArray[Any], tasks: Sequence[Task], targets: Columns, out: Path, seeds: tuple[int, int]
) -> tuple[Results, Best]:
    """Runs the study that the parameters of an estimator describe.

    Args:
        estimator: the estimator with the parameters.
        inputs: the features [rows, features].
        tasks: the tasks, one per target.
        targets: the labels by task, NaN if missing.
        out: the folder of the run.
        seeds: the seeds for the split and for the first network.

    Returns:
        The results, and the networks to use: those of the verdict, or of the method in `estimator.choose`.
    """
    problems = _problems(estimator)
    recipe = collect(problems, _recipe, estimator)
    problem = collect(problems, _problem, estimator, inputs, tasks, targets, recipe, seeds[0])
    study = collect(problems, partial(Study, executor=estimator.executor, device=estimator.device), problem, out)
    request = _request(estimator, seeds[1])
    if problem is not None and study is not None:
        collect(problems, partial(study.check, **request))
    raise_problems(problems)
    results = study.run(**request)
    return results, study.best(*_choose_networks(results, estimator.choose))


def _problems(estimator: Any) -> list[InvalidInput]:
    problems = []
    val, test = estimator.validation_fraction, estimator.test_fraction
    if not (val > 0 and test > 0 and val + test < 1):
        both = "`validation_fraction` and `test_fraction`"
        problems.append(InvalidInput(both, "must be positive and sum to less than 1", f"{val!r} and {test!r}"))
    methods = [str(getattr(method, "name", method)) for method in _as_list(estimator.methods)]
    with_groups = [name for name in methods if name != "random"]  # which is an average over many groupings
    choices = dict.fromkeys([VERDICT, "mtl", *with_groups])
    if estimator.choose not in choices:
        expected = f"must be one of {', '.join(map(repr, choices))}"
        problems.append(InvalidInput("choose", expected, repr(estimator.choose)))
    sizes = _as_list(estimator.hidden_sizes)
    if not sizes or not all(is_positive_integer(size) for size in sizes):
        problems.append(
            InvalidInput("hidden_sizes", "must be a list of positive integers", repr(estimator.hidden_sizes))
        )
    return problems


def _recipe(estimator: Any) -> Recipe:
    return Recipe(**{name: _to_python(getattr(estimator, name)) for name in RECIPE})


def _problem(
    estimator: Any, inputs: NDArray[Any], tasks: Sequence[Task], targets: Columns, recipe: Recipe | None, seed: int
) -> Problem:
    val, test = estimator.validation_fraction, estimator.test_fraction
    return Problem.from_arrays(
        torch.tensor(inputs),
        targets,
        tasks,
        encoder=MLP(inputs.shape[1], _as_list(estimator.hidden_sizes)),
        recipe=recipe,
        split=(1 - val - test, val, test),
        seed=seed,
    )


def _request(estimator: Any, first: int) -> dict[str, Any]:
    budgets, seeds = _to_python(estimator.budgets), _to_python(estimator.seeds)
    return {
        "methods": estimator.methods,
        "budgets": [budgets] if isinstance(budgets, int) else budgets,
        "seeds": range(first, first + seeds) if isinstance(seeds, int) else seeds,
        "options": estimator.options,
    }


def _choose_networks(results: Results, choose: str) -> tuple[str | None, int | None]:
    """Returns the method and budget to use, None for the verdict's; picks the budget with the best validation loss."""
    if choose == VERDICT:
        return None, None
    candidates = [line for line in results.table() if line.method == choose]
    # The validation loss is None if training diverged.
    best = min(candidates, key=lambda line: math.inf if line.validation is None else line.validation)
    return best.label


def _as_list(value: Any) -> list[Any]:
    """Returns the entries of a list; an empty list for anything else."""
    return [] if isinstance(value, str) or not isinstance(value, Iterable) else list(value)


def _to_python(value: Any) -> Any:
    """Converts NumPy scalars, which parameter searches may pass, to Python numbers."""
    return value.item() if isinstance(value, np.generic) else value


def _columns_of(y: Any, numeric: bool) -> tuple[Columns, bool]:
    """Returns the labels by task name, and whether `y` is one-dimensional.

    Args:
        y: the labels [rows, tasks] or [rows], NaN if missing.
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
    """Returns the classes of each task, and the labels as class indices, NaN if missing."""
    problems: list[InvalidInput] = []
    classes, codes = {}, {}
    for name, column in labels.items():
        here = _labeled_rows(column)
        present = np.array(column[here].tolist()) if column.dtype == object else column[here]
        check_classification_targets(present)
        classes[name], numbers = np.unique(present, return_inverse=True)
        codes[name] = np.full(len(column), np.nan)
        codes[name][here] = numbers
        if len(classes[name]) < 2:
            expected = f"{name!r} must have at least two classes"
            problems.append(InvalidInput("`y`:", expected, str(len(classes[name]))))
    raise_problems(problems)
    return classes, codes


def _labeled_rows(column: NDArray[Any]) -> NDArray[np.bool_]:
    """Returns a mask of the rows that have a label."""
    return np.array([not is_missing(label) for label in column.tolist()], dtype=bool)


def _stack_columns(columns: list[NDArray[Any]], flat: bool) -> NDArray[Any]:
    """Stacks the columns of all tasks; the array contains objects if their labels have different kinds of dtype."""
    if flat:
        return columns[0]
    alike = len({column.dtype.kind for column in columns}) == 1
    return np.stack(columns if alike else [column.astype(object) for column in columns], axis=1)


def _class_probabilities(outputs: NDArray[Any]) -> NDArray[Any]:
    """Returns probabilities [rows, classes], adding the column of class 0 for binary tasks."""
    return outputs if outputs.ndim == 2 else np.stack([1 - outputs, outputs], axis=1)


def _mean_score(score: Callable[..., float], labels: Columns, found: Columns) -> float:
    """Returns the mean over tasks of a score, computed on the labeled rows of each task."""
    if len(labels) != len(found):
        raise InvalidInput("y", f"must have {len(found)} columns, as in the call to fit()", str(len(labels)))
    scores = []
    for column, predicted in zip(labels.values(), found.values(), strict=True):
        here = _labeled_rows(column)
        if here.any():
            scores.append(score(column[here], predicted[here]))
    if not scores:
        raise InvalidInput("y", "must contain labels to compute a score", "none")
    return float(np.mean(scores))


def _accuracy(labels: NDArray[Any], found: NDArray[Any]) -> float:
    """Returns the fraction of correct predictions; compares objects, since NumPy strings have a fixed length."""
    return float(np.mean(labels.astype(object) == found.astype(object)))
