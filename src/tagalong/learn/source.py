"""The rows from which a problem was created, which can be split and prepared again for other folds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tagalong.errors import InvalidInput, pluralize, raise_problems

from .network import Encoder, EncoderName
from .preparation import Preparation, Table
from .recipe import Recipe
from .rows import Split, require_in_memory
from .splitting import PARTS, RowNumbers, RowSplit
from .table_networks import default_network, default_recipe
from .table_warnings import log_warnings, table_warnings
from .tabm import TabM, TabMHeads, task_problems
from .targets import Target, encoded_labels
from .task import Task

if TYPE_CHECKING:
    import pandas as pd

    from .problem import Problem

WARNING = "warning: "  # the beginning of notes that are warnings


@dataclass(frozen=True, eq=False)
class Source:
    """The rows of a table or of arrays before they are split, and how to make problems of them.

    Attributes:
        targets: the labels of each task.
        data: the inputs: typed columns, or an array. Arrays that are not flat are None in problems, whose splits
            contain them unchanged.
        fit: creates the preparation from the inputs, the training rows and the labels of encoded classes.
        groups: the group label of each row.
        row_weights: the weight of each row, or None if all rows count the same.
        encoder: the encoder or its name. If None, "mlp" is used; see `default_network`.
        recipe: the training recipe. If None, the default recipe of the encoder is used.
        unlabelled: more rows without labels, in the form that the preparation reads, or None.
        clip: whether answers of regression tasks are clipped; see `Problem.scales`.
        seed: the seed for splits.
        fixed_split: whether the user assigned rows to splits, instead of giving fractions.
        network: the encoder, head and recipe that the problem was created with.
    """

    targets: tuple[Target, ...]
    data: pd.DataFrame | Tensor | None
    fit: Callable[..., Preparation]
    groups: NDArray[Any] | None = None
    row_weights: NDArray[np.float64] | None = None
    encoder: Encoder | EncoderName | None = None
    recipe: Recipe | None = None
    unlabelled: Any = None
    clip: bool = False
    seed: int = 0
    fixed_split: bool = False
    network: dict[str, Any] = field(default_factory=dict)

    def named_fields(
        self,
        name: str,
        fields: Mapping[str, Any],
        features: Sequence[str],
        notes: Sequence[str],
        warnings: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Adds the name and the notes of a new problem to its `fields`.

        Args:
            name: the name of the problem.
            fields: see `fields`.
            features: the names of the columns of inputs. If there are none, no warnings look at inputs.
            notes: notes on the data.
            warnings: warnings about the data. They are logged with all others, and added to the notes.
        """
        raw = self._raw(fields["table"])
        warnings = [*warnings, *table_warnings(features, raw, self.targets, fields["row_numbers"], self.groups)]
        log_warnings(name, warnings)
        notes = list(notes)
        if (unlabelled := fields["unlabelled"]) is not None:
            count = pluralize(len(unlabelled), "row")
            notes.append(f"{count} without any label, used only by networks that others teach")
        for target in self.targets:
            if target.classes is not None and target.task.kind == "binary":
                negative, positive = target.classes
                notes.append(f"{target.task.name!r}: {positive!r} is encoded as 1, {negative!r} as 0")
        return {"name": name, **fields, "notes": (*notes, *(WARNING + warning for warning in warnings))}

    def _raw(self, table: Preparation) -> Tensor:
        data: Any = self.data
        return table.read_columns(data) if isinstance(table, Table) else data

    def with_data_of(self, problem: Problem) -> Source:
        """Returns the source with its inputs, if only the splits of the problem contain them."""
        if self.data is not None or problem.row_numbers is None:
            return self
        order = torch.as_tensor(np.concatenate(problem.row_numbers)).argsort()
        inputs = [require_in_memory(split, "folds").inputs for split in problem.splits.values()]
        return replace(self, data=torch.cat(inputs)[order])

    def fields(self, row_split: RowSplit) -> dict[str, Any]:
        """Returns the fields of a problem with this split, apart from its name and notes."""
        table = self.fit(self.data, row_split.train, classes=encoded_labels(self.targets))
        inputs = table.prepare(self._raw(table))
        dtype = inputs.dtype if inputs.is_floating_point() else torch.float32
        clusters = None if self.groups is None else torch.as_tensor(np.unique(self.groups, return_inverse=True)[1])
        scales, labels = {}, {}
        for target in self.targets:
            values = target.values
            if target.task.kind == "regression":
                scale = scales[target.task.name] = target.scale(row_split.train, self.clip)
                values = (values - scale[0]) / scale[1]
            labels[target.task.name] = values

        def make_split(rows: RowNumbers) -> Split:
            index, weights = torch.as_tensor(rows), self.row_weights
            return Split(
                inputs[index],
                {task: torch.as_tensor(values[rows], dtype=dtype) for task, values in labels.items()},
                None if clusters is None else clusters[index],
                None if weights is None else torch.as_tensor(weights[rows], dtype=dtype),
            )

        train = make_split(row_split.train)
        without_labels = None
        if self.unlabelled is not None:
            try:
                without_labels = table.inputs(self.unlabelled)
            except InvalidInput as error:
                error.show_as({"rows": "`unlabelled`"})
                raise
        tasks = tuple(target.task for target in self.targets)
        network = _network_fields(self.encoder, train.inputs, tasks)
        if self.recipe is not None:
            network["recipe"] = self.recipe
        kept = self.data if inputs.dim() == 2 else None
        return {
            "tasks": tasks,
            "train": train,
            "val": make_split(row_split.val),
            "test": make_split(row_split.test),
            **network,
            "scales": scales,
            "table": table,
            "unlabelled": without_labels,
            "row_numbers": row_split,
            "source": replace(self, data=kept, network=network),
        }


class Folds:
    """The problems of `Problem.folds`, each of which is created when it is asked for.

    Attributes:
        problem: the problem whose rows are split.
        splits: the row numbers of each fold.
    """

    def __init__(self, problem: Problem, splits: Sequence[RowSplit]) -> None:
        self.problem, self.splits = problem, tuple(splits)

    def __len__(self) -> int:
        return len(self.splits)

    def __iter__(self) -> Iterator[Problem]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, fold: int) -> Problem:
        problem, source = self.problem, self.problem.source
        assert source is not None
        fields = source.with_data_of(problem).fields(self.splits[fold])
        for part in PARTS:
            fields[part] = fields[part].only(problem.names)

        # Keep what was changed after the problem had been created, such as settings of the recipe.
        original = {"head": None, "recipe": Recipe()} | source.network
        for name in ("encoder", "head"):
            if getattr(problem, name) is not original[name]:
                fields[name] = getattr(problem, name)
        settings = vars(problem.recipe).items()
        changed = {name: value for name, value in settings if value != getattr(original["recipe"], name)}
        own: Recipe = fields.get("recipe", Recipe())
        recipe = replace(own, **changed)
        scales = {name: scale for name, scale in fields["scales"].items() if name in problem.names}
        kept = {"tasks": problem.tasks, "recipe": recipe, "scales": scales, "source": None, "weightings": {}}
        return replace(problem, **fields | kept)


def _network_fields(encoder: Encoder | EncoderName | None, inputs: Tensor, tasks: Sequence[Task]) -> dict[str, Any]:
    """Returns the encoder, with the heads and the recipe that it needs.

    Args:
        encoder: the encoder or its name. If None, "mlp" is used.
        inputs: the inputs of the training rows.
        tasks: the tasks.
    """
    if encoder == "tabm" or isinstance(encoder, TabM):
        raise_problems(task_problems(tasks))
    if encoder is None or isinstance(encoder, str):
        return default_network(inputs, encoder or "mlp")
    if isinstance(encoder, TabM):
        return {"encoder": encoder, "head": TabMHeads(encoder.members), "recipe": default_recipe(inputs, "tabm")}
    return {"encoder": encoder}
