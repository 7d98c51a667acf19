"""Trains gradient boosting with several libraries, and reads their trees into the same arrays.

All libraries have the same learning rate and stop early alike; everything else is their default. Inputs are numbers and
codes of categories, both with NaN where missing. `levels` has the number of categories of each input, or 0 for numbers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from .fitted_heads import Array, Labelled
from .task import Kind

ALL_CODES = 2**62 - 1  # of categories, as bits
LEARNING_RATE, MOST_TREES, PATIENCE = 0.05, 1000, 50  # patience is in trees
TREES_WITHOUT_VALIDATION = 100  # if no validation row has a label


class Tree(NamedTuple):
    """A decision tree. Its nodes are numbered from 0, the root.

    Attributes:
        feature: the input that each node looks at.
        threshold: numbers up to it go left. In single precision, like the inputs.
        categories: for a category, a number whose bit k says whether code k goes left. 0 for a number.
        missing_left: whether missing values go left.
        left: the left child of each node, or -1 for a leaf.
        right: the right child of each node.
        value: the value of each leaf for each output [nodes, outputs].
    """

    feature: Array
    threshold: Array
    categories: Array
    missing_left: Array
    left: Array
    right: Array
    value: Array


Levels = Sequence[int]
Boosted = tuple[list[Tree], Array]  # the trees, and the constant that is added to their sum [outputs]


def join_trees(trees: Sequence[Tree], outputs: int) -> dict[str, Array]:
    """Returns the arrays of a `TreesHead`: nodes are numbered across all trees, and a leaf is its own child."""
    joined = dict.fromkeys(Tree._fields, np.zeros(0, int)) | {"value": np.zeros((0, outputs))}
    for name, array in joined.items():
        joined[name] = np.concatenate([array, *(getattr(tree, name) for tree in trees)])
    sizes = [len(tree.left) for tree in trees]
    roots, nodes = np.cumsum([0, *sizes])[:-1], np.arange(sum(sizes))
    is_leaf = joined["left"] < 0
    for side in ("left", "right"):
        joined[side] = np.where(is_leaf, nodes, joined[side] + np.repeat(roots, sizes))
    return {"roots": roots, **joined}


def boost_scikit_learn(kind: Kind, outputs: int, levels: Levels, train: Labelled, val: Labelled | None) -> Boosted:
    """Trains `HistGradientBoosting` and reads its trees."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    estimator = HistGradientBoostingRegressor if kind == "regression" else HistGradientBoostingClassifier
    settings: dict[str, Any] = {"learning_rate": LEARNING_RATE, "max_iter": MOST_TREES, "random_state": 0}
    is_category = np.array(levels) > 0
    if is_category.any():
        settings["categorical_features"] = is_category
    if val is None:
        model = estimator(**settings | {"max_iter": TREES_WITHOUT_VALIDATION}, early_stopping=False).fit(*train)
        best = None
    else:
        model = estimator(**settings, early_stopping=True, scoring="loss", n_iter_no_change=PATIENCE, tol=0)
        model.fit(*train, X_val=val[0], y_val=val[1], sample_weight_val=val[2])
        best = int(np.argmax(model.validation_score_))
    return read_scikit_learn(model, best, is_category, train[0]), np.ravel(model._baseline_prediction)


def read_scikit_learn(model: Any, best: int | None, is_category: Array, inputs: Array) -> list[Tree]:
    """Reads the trees of the first iterations, of which there is one for each output."""
    # The trees see the categories before the numbers, and only those that occur, which are numbered anew.
    order = np.argsort(~is_category, kind="stable")
    codes = [np.unique(column[~np.isnan(column)]).astype(int) for column in inputs[:, is_category].T]
    trees = []
    for predictors in model._predictors[:best]:
        for output, predictor in enumerate(predictors):
            nodes = predictor.nodes
            missing_left, categories = nodes["missing_go_to_left"] > 0, np.zeros(len(nodes), dtype=int)
            for node in np.flatnonzero(nodes["is_categorical"]):
                words = predictor.raw_left_cat_bitsets[nodes["bitset_idx"][node]]
                own = codes[nodes["feature_idx"][node]]
                goes_left = np.unpackbits(words.view(np.uint8), bitorder="little")[: len(own)] > 0
                categories[node] = _as_bits(own[goes_left])
                if missing_left[node]:  # and so do categories that do not occur in training
                    categories[node] += ALL_CODES - _as_bits(own)
            value = np.zeros((len(nodes), len(predictors)))
            value[:, output] = nodes["value"]
            feature, threshold = order[nodes["feature_idx"]], _round_down(nodes["num_threshold"])
            left, right = np.where(nodes["is_leaf"], -1, nodes["left"].astype(int)), nodes["right"].astype(int)
            trees.append(Tree(feature, threshold, categories, missing_left, left, right, value))
    return trees


def _as_bits(codes: Iterable[Any]) -> int:
    return sum(1 << int(code) for code in codes)


def _round_down(thresholds: Array) -> Array:
    """Returns thresholds in single precision that separate the same numbers of single precision."""
    largest = np.finfo(np.float32).max
    rounded = thresholds.clip(-largest, largest).astype(np.float32)
    return np.where(rounded > thresholds, np.nextafter(rounded, np.float32(-np.inf)), rounded)


def boost_xgboost(kind: Kind, outputs: int, levels: Levels, train: Labelled, val: Labelled | None) -> Boosted:
    """Trains XGBoost and reads its trees."""
    import xgboost

    objective = {"regression": "reg:squarederror", "binary": "binary:logistic", "multiclass": "multi:softprob"}[kind]
    settings = {"objective": objective} | ({"num_class": outputs} if kind == "multiclass" else {})
    types = ["c" if own else "q" for own in levels] or None
    parts = [
        xgboost.DMatrix(rows[0], rows[1], weight=rows[2], feature_types=types, enable_categorical=True)
        for rows in (train, val)
        if rows is not None
    ]
    booster = _train_xgboost(settings, parts)
    base = json.loads(booster.save_raw("json"))["learner"]["learner_model_param"]["base_score"]
    constant = np.broadcast_to(json.loads(base), outputs).astype(float)
    return read_xgboost(booster, outputs), np.log(constant / (1 - constant)) if kind == "binary" else constant


def _train_xgboost(settings: Mapping[str, Any], parts: Sequence[Any], **functions: Any) -> Any:
    import xgboost

    settings = {"eta": LEARNING_RATE, "tree_method": "hist", "seed": 0, **settings}
    if len(parts) == 1:
        return xgboost.train(settings, parts[0], TREES_WITHOUT_VALIDATION, **functions)
    stopping = {"evals": [(parts[1], "val")], "early_stopping_rounds": PATIENCE, "verbose_eval": False}
    booster = xgboost.train(settings, parts[0], MOST_TREES, **stopping, **functions)
    return booster[: booster.best_iteration + 1]


def read_xgboost(booster: Any, outputs: int) -> list[Tree]:
    """Reads trees with a value or a vector per leaf. Only values below a condition go left."""
    model = json.loads(booster.save_raw("json"))["learner"]["gradient_booster"]["model"]
    trees = []
    for tree, output in zip(model["trees"], model["tree_info"], strict=True):
        conditions = np.array(tree["split_conditions"], dtype=np.float32)
        left, right = np.array(tree["left_children"]), np.array(tree["right_children"])
        value = np.zeros((len(left), outputs))
        if "leaf_weights" in tree:  # where the right child of a leaf is its number
            vectors = np.reshape(tree["leaf_weights"], (-1, outputs))
            value[left < 0] = vectors[right[left < 0]]
        else:  # the condition of a leaf is its value
            value[:, output] = conditions
        threshold, categories = np.nextafter(conditions, np.float32(-np.inf)), np.zeros(len(left), dtype=int)
        nodes, firsts, sizes = (tree[f"categories_{part}"] for part in ("nodes", "segments", "sizes"))
        for node, first, size in zip(nodes, firsts, sizes, strict=True):
            categories[node] = ALL_CODES - _as_bits(tree["categories"][first : first + size])  # which go right
        missing_left = np.array(tree["default_left"]) > 0
        trees.append(Tree(np.array(tree["split_indices"]), threshold, categories, missing_left, left, right, value))
    return trees


def boost_xgboost_vectors(
    inputs: Sequence[Array], constants: Array, objective: Callable[..., Any], metric: Callable[..., Any]
) -> list[Tree]:
    """Trains XGBoost with a value for each output per leaf.

    Args:
        inputs: the inputs of the training rows, and those of the validation rows if there are any.
        constants: the answer to which trees add [outputs].
        objective: returns the gradient and the diagonal of the Hessian [rows, outputs] for answers [rows, outputs].
        metric: returns a name and the loss for answers on validation rows.
    """
    import xgboost

    settings = {"multi_strategy": "multi_output_tree", "base_score": 0.0, "disable_default_eval_metric": 1}
    parts = []
    for rows in inputs:
        answers = np.tile(constants, (len(rows), 1))
        parts.append(xgboost.DMatrix(rows, np.zeros_like(answers), base_margin=answers))
    return read_xgboost(_train_xgboost(settings, parts, obj=objective, custom_metric=metric), len(constants))


def boost_lightgbm(kind: Kind, outputs: int, levels: Levels, train: Labelled, val: Labelled | None) -> Boosted:
    """Trains LightGBM and reads its trees, which include the constant."""
    import lightgbm

    settings = {"objective": kind, "num_class": outputs, "learning_rate": LEARNING_RATE, "seed": 0, "verbosity": -1}
    columns = np.flatnonzero(levels).tolist()
    rows = lightgbm.Dataset(train[0], train[1], weight=train[2], categorical_feature=columns)
    if val is None:
        booster = lightgbm.train(settings, rows, TREES_WITHOUT_VALIDATION)
    else:
        stopping = lightgbm.early_stopping(PATIENCE, verbose=False)
        checks = lightgbm.Dataset(val[0], val[1], weight=val[2], reference=rows)
        booster = lightgbm.train(settings, rows, MOST_TREES, valid_sets=[checks], callbacks=[stopping])
    return read_lightgbm(booster, outputs), np.zeros(outputs)


def read_lightgbm(booster: Any, outputs: int) -> list[Tree]:
    """Reads the trees up to the best iteration, of which there is one for each output."""
    trees = []
    for tree in booster.dump_model()["tree_info"]:
        nodes, fields = [tree["tree_structure"]], []
        for node in nodes:  # to which children are added
            if "leaf_value" in node:
                fields.append((0, 0.0, 0, True, -1, -1, node["leaf_value"]))
                continue
            is_category, child = node["decision_type"] == "==", len(nodes)
            threshold = 0.0 if is_category else node["threshold"]
            codes = node["threshold"].split("||") if is_category else ()  # which go left
            missing_left = threshold >= 0 and not is_category  # without any in training, they count as 0
            if node["missing_type"] == "NaN" and not is_category:
                missing_left = node["default_left"]
            fields.append((node["split_feature"], threshold, _as_bits(codes), missing_left, child, child + 1, 0.0))
            nodes += [node["left_child"], node["right_child"]]
        *arrays, leaf_values = map(np.array, zip(*fields, strict=True))
        value = np.zeros((len(nodes), outputs))
        value[:, tree["tree_index"] % outputs] = leaf_values
        joined = Tree._make([*arrays, value])
        trees.append(joined._replace(threshold=_round_down(joined.threshold)))
    return trees


def boost_catboost(kind: Kind, outputs: int, levels: Levels, train: Labelled, val: Labelled | None) -> Boosted:
    """Trains CatBoost and reads its trees. Each category becomes a column of 0 and 1."""
    import catboost

    loss = {"regression": "RMSE", "binary": "Logloss", "multiclass": "MultiClass"}[kind]
    settings = {"loss_function": loss, "learning_rate": LEARNING_RATE, "random_seed": 0, "allow_writing_files": False}
    stopping: dict[str, Any] = {"iterations": TREES_WITHOUT_VALIDATION}
    if val is not None:
        stopping = {"iterations": MOST_TREES, "od_type": "Iter", "od_wait": PATIENCE, "use_best_model": True}
    parts = []
    for rows in (train, val):
        if rows is not None:
            pairs = zip(rows[0].T[..., None], levels, strict=True)
            columns = [column == np.arange(size) if size else column for column, size in pairs]
            parts.append(catboost.Pool(np.hstack(columns), rows[1], weight=rows[2]))
    model = catboost.CatBoost(settings | stopping).fit(parts[0], eval_set=parts[1:] or None, verbose=False)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        model.save_model(str(path), format="json")
        document = json.loads(path.read_text())
    return read_catboost(document, outputs, levels), np.atleast_1d(document["scale_and_bias"][1])


def read_catboost(document: Mapping[str, Any], outputs: int, levels: Levels) -> list[Tree]:
    """Reads symmetric trees, in which all nodes of a level ask the same question."""
    source = np.repeat(np.arange(len(levels)), np.maximum(levels, 1))  # the input of each column
    bits = np.concatenate([ALL_CODES - (1 << np.arange(size)) if size else [0] for size in levels])
    missing_left = [own["nan_value_treatment"] != "AsTrue" for own in document["features_info"]["float_features"]]
    scale, _ = document["scale_and_bias"]
    trees = []
    for tree in document["oblivious_trees"]:
        splits = tree["splits"][::-1]  # the last one is the highest bit of a leaf's number
        depth, inner = len(splits), 2 ** len(splits) - 1
        level = np.repeat(np.arange(depth + 1), 2 ** np.arange(depth + 1))  # of each node; the leaves are the last one
        column = np.array([*(split["float_feature_index"] for split in splits), 0])[level]
        threshold = np.array([*(split["border"] for split in splits), 0.0])[level]
        left = np.append(2 * np.arange(inner) + 1, np.full(inner + 1, -1))
        value = np.append(np.zeros((inner, outputs)), np.reshape(tree["leaf_values"], (-1, outputs)), 0)
        goes_left = np.array(missing_left)[column]
        trees.append(Tree(source[column], threshold, bits[column], goes_left, left, left + 1, scale * value))
    return trees


# How to train a model for one task. "multiclass" stands for at least three classes, numbered from 0.
LIBRARIES: Mapping[str, Callable[[Kind, int, Levels, Labelled, Labelled | None], Boosted]] = {
    "scikit-learn": boost_scikit_learn,
    "xgboost": boost_xgboost,
    "lightgbm": boost_lightgbm,
    "catboost": boost_catboost,
}
