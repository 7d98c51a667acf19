"""The trained answer: the recommended networks with the heads they serve, ready to predict."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils import parametrize

from tagalong.group import Group
from tagalong.learn import Network, Problem, build_network
from tagalong.learn._scoring import outputs_on

from ._change import Label, changes
from ._record import Outcome, Record

if TYPE_CHECKING:
    from ._results import Results

States = Callable[[str], Mapping[str, Tensor]]


@dataclass(frozen=True)
class Served:
    """What predictions of a task mean.

    Attributes:
        name: of the task.
        kind: "binary", "multiclass", "regression" or "custom".
        scale: mean and standard deviation to undo, for regression; None if there are none.
        labels: what the numbers 0, 1, … of a class stand for in the data; empty if they stand for themselves.
    """

    name: str
    kind: str
    scale: tuple[float, float] | None = None
    labels: tuple[Any, ...] = ()

    def prediction(self, outputs: Tensor) -> NDArray[Any]:
        """Outputs of the head as probabilities (of label 1, of every class) or in the data's units."""
        if self.kind == "binary":
            outputs = torch.sigmoid(outputs)
        elif self.kind == "multiclass":
            outputs = torch.softmax(outputs, 1)
        elif self.kind == "regression" and self.scale is not None:
            outputs = outputs * self.scale[1] + self.scale[0]
        flat = outputs.squeeze(1) if outputs.dim() == 2 and outputs.shape[1] == 1 else outputs
        return flat.cpu().numpy()


@dataclass(frozen=True, eq=False)
class Best:
    """The recommended networks of one seed: what a study measured, not an ensemble of its seeds.

    The seed is the one whose networks did best on validation.

    Attributes:
        groups: what each network trained and serves.
        networks: one per group, in evaluation mode, with the heads of the tasks it serves only.
        tasks: what the predictions of each task mean, in the order of the problem.
        seed: of the networks.
        table: how raw rows become inputs; None if rows are inputs already.
        example: a few rows of inputs, for their shape.
    """

    groups: tuple[Group, ...]
    networks: tuple[Network, ...]
    tasks: tuple[Served, ...]
    seed: int
    table: Any
    example: Tensor

    @staticmethod
    def build(
        problem: Problem,
        groups: Sequence[Group],
        states: Sequence[Mapping[str, Tensor]],
        seed: int,
        widths: Sequence[float] | None = None,
    ) -> Best:
        """The networks of these groups with trained weights, as `Trained.state` holds them; of width 1 by default."""
        given = zip(groups, states, widths or [1.0] * len(groups), strict=True)
        networks = [_serving(problem, group, state, seed, width) for group, state, width in given]
        example, _ = problem.train.only(()).batch(torch.arange(min(2, len(problem.train))))
        return Best(tuple(groups), tuple(networks), served_tasks(problem), seed, problem.table, example.cpu())

    def predict(self, rows: Any) -> dict[str, NDArray[Any]]:
        """Predictions of every task for raw rows.

        Args:
            rows: as the problem was made from: an array for `Problem.from_arrays`, a table or CSV for
                `Problem.from_csv`, inputs for a problem made otherwise.

        Returns:
            For each task the probability of label 1 (binary) or of every class (multiclass), the value in the data's
            units (regression), or the raw outputs (custom).
        """
        inputs = torch.as_tensor(rows) if self.table is None else self.table.inputs(rows)
        parts: dict[str, Tensor] = {}
        for network in self.networks:
            like = next(network.parameters(), self.example)
            parts |= outputs_on(network, inputs.to(like.dtype) if inputs.is_floating_point() else inputs)
        return {task.name: task.prediction(parts[task.name]) for task in self.tasks}

    def save(self, out: str | Path) -> Path:
        """Writes the networks to `networks/` of a run's folder; the folder alone is enough to predict."""
        from ._best_file import write

        return write(self, Path(out))

    @staticmethod
    def load(out: str | Path) -> Best:
        """Reads what `save` wrote. It unpickles the modules, which can run code: open only folders you trust."""
        from ._best_file import read

        return read(Path(out))

    def export(self, folder: str | Path) -> list[str]:
        """Writes the networks for use without tagalong: weights, `torch.export` programmes, and a loader script.

        Args:
            folder: made if it is not there; `load.py` in it needs only torch.

        Returns:
            A note for each network that `torch.export` could not take; its weights are there all the same.
        """
        from ._export import export

        return export(self, Path(folder))


def keep_best(
    results: Results,
    problem: Problem,
    state_of: States,
    width_of: Callable[[str], float] = lambda key: 1.0,
    label: Label | None = None,
) -> Best:
    """The networks a verdict recommends, of the seed that did best on validation.

    Args:
        results: with its records' keys of networks in the store.
        problem: they were trained on.
        state_of: gives the weights of a network by its key.
        width_of: gives its width.
        label: a method and budget whose networks are wanted instead.
    """
    record = recommended_record(results, label)
    states, widths = [state_of(key) for key in record.networks], [width_of(key) for key in record.networks]
    return Best.build(problem, record.groups, states, record.seed, widths)


def recommended_record(results: Results, label: Label | None = None) -> Record:
    """Among the records that the verdict recommends, or of this label, the seed with the best validation losses."""
    wanted = label or results.verdict().recommended
    found = [record for record in results.records_of(wanted) if not record.diverged]
    if not found:
        raise ValueError(f"no networks of {wanted[0]!r} are left, since some diverged with every seed; lower `lr`")
    one = [Record("mean", None, record.seed, (), _mean_val(found), {}) for record in found]
    against_mean = dict(zip((record.seed for record in found), changes(found, one, "val"), strict=True))
    return min(found, key=lambda record: (against_mean[record.seed], record.seed))


def _mean_val(found: Sequence[Record]) -> dict[str, Outcome]:
    losses = {task: [record.val[task].loss for record in found] for task in found[0].val}
    return {task: Outcome(sum(values) / len(values), math.nan) for task, values in losses.items()}


def served_tasks(problem: Problem) -> tuple[Served, ...]:
    """What the predictions of a problem's tasks mean."""
    labels: Mapping[str, Any] = getattr(problem.table, "classes", None) or {}
    return tuple(
        Served(task.name, task.kind, problem.scales.get(task.name), tuple(labels.get(task.name, ())))
        for task in problem.tasks
    )


def _serving(problem: Problem, group: Group, state: Mapping[str, Tensor], seed: int, width: float) -> Network:
    whole = build_network(problem, group.trains, seed, width)
    whole.load_state_dict(state)
    heads = {task: head for task, head in zip(whole.tasks, whole.heads, strict=True) if task in group.serves}
    return _plain(Network(whole.encoder, list(heads.values()), list(heads), seed).eval())


def _plain(network: Network) -> Network:
    """With the weights that parametrisations (weight or spectral norm) work out: torch refuses to pickle those."""
    for module in network.modules():
        for name in list(getattr(module, "parametrizations", ())) if parametrize.is_parametrized(module) else ():
            parametrize.remove_parametrizations(module, name, leave_parametrized=True)
    return network
