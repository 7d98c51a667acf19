"""Defines `Best`, the trained networks recommended by a study, which can make predictions, be saved and be exported."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tagalong.documents import build
from tagalong.errors import InvalidInput
from tagalong.files import checksum, open_atomic, report_damage, write_atomic, write_document
from tagalong.group import Group
from tagalong.learn import (
    AVERAGES_BY_KIND,
    Average,
    Network,
    Problem,
    Scaling,
    average_answers,
    describe_network,
    feature_count,
    outputs_on,
    read_preparation,
    rebuild_network,
)

from .documents import NETWORKS_FOLDER, NETWORKS_NAME, TRAIN_AGAIN, NetworksFile, NetworksFileError
from .export_loader import to_prediction
from .members import member_seed, serving_network
from .records import Label, Record, check_served
from .runner import Runner
from .store import pack_tensors, unpack_tensors

if TYPE_CHECKING:
    from .results import Results

LOADER_SCRIPT = "load.py"
EXAMPLE = "example"  # the name of the rows of inputs among the weights


@dataclass(frozen=True)
class ServedTask:
    """A task served by a network, and how to convert its outputs to predictions.

    Attributes:
        name: the name of the task.
        kind: "binary", "multiclass", "regression" or "custom".
        scale: the scale and the limits of outputs, see `Problem.answer_scales`; None if there are none.
        labels: the original labels of classes 0, 1, …, or an empty tuple if the classes are already numbered.
        average: how the outputs of several networks are averaged, if the task itself says so (see `Task`).
    """

    name: str
    kind: Literal["binary", "multiclass", "regression", "custom"]
    scale: tuple[float, ...] | None = None
    labels: tuple[str | float | int | bool, ...] = ()
    average: Average | None = None

    @property
    def averaging(self) -> Average | None:
        """How the outputs of several networks are averaged, or None if it is unknown."""
        return self.average or AVERAGES_BY_KIND.get(self.kind)

    def prediction(self, outputs: Tensor) -> NDArray[Any]:
        """Converts a head's outputs to probabilities (of label 1 or of every class) or to the original units."""
        return to_prediction(asdict(self), outputs).cpu().numpy()


@dataclass(frozen=True, eq=False)
class Best:
    """The recommended networks, trained with the seed that performed best on validation.

    If several networks serve a task, its predictions are averages over these networks.

    Attributes:
        groups: the tasks that each network is trained on and serves.
        networks: one network per group, in evaluation mode, with heads only for the tasks that it serves.
        tasks: a description of how to convert each task's outputs to predictions, in the order of the problem's tasks.
        seed: the seed of the networks. Copies are trained with seeds derived from it.
        table: the object that converts raw rows to inputs, or None if the rows are already inputs.
        example: a few rows of inputs, used to determine the input shape.
        layers: a description of each network's layers, or None for networks with layers of your own.
        widths: the width of each network.
    """

    groups: tuple[Group, ...]
    networks: tuple[Network, ...]
    tasks: tuple[ServedTask, ...]
    seed: int
    table: Any
    example: Tensor
    layers: tuple[Mapping[str, Any] | None, ...]
    widths: tuple[float, ...]

    def __repr__(self) -> str:
        return f"Best({', '.join(f'<{group}>' for group in self.groups)}, seed={self.seed})"

    @staticmethod
    def build(
        problem: Problem,
        groups: Sequence[Group],
        states: Sequence[Mapping[str, Tensor]],
        seed: int,
        widths: Sequence[float] | None = None,
    ) -> Best:
        """Builds the networks for these groups and loads their trained weights (`Trained.state`).

        The default width of a network is 1.
        """
        used_widths = widths or [1.0] * len(groups)
        problems = [problem.with_network(group.network) for group in groups]
        networks = [
            serving_network(own, group, state, member_seed(seed, group.copy), width)
            for own, group, state, width in zip(problems, groups, states, used_widths, strict=True)
        ]
        example, _ = problem.train.only(()).batch(torch.arange(min(2, len(problem.train))))
        layers = [
            describe_network(own, network, feature_count(network.encoder, example), width)
            for own, network, width in zip(problems, networks, used_widths, strict=True)
        ]
        tasks = _served_tasks(problem)
        return Best(
            tuple(groups),
            tuple(networks),
            tasks,
            seed,
            problem.table,
            example.cpu(),
            tuple(layers),
            tuple(used_widths),
        )

    def predict(self, rows: Any) -> dict[str, NDArray[Any]]:
        """Predicts all tasks for raw rows.

        Args:
            rows: rows in the same format as the problem's data: an array for `Problem.from_arrays`, a table or CSV file
                for `Problem.from_table`, or inputs for any other problem.

        Returns:
            For each task, the probability of label 1 (binary), the probability of every class (multiclass), the value
            in the original units (regression), or the raw outputs (custom).
        """
        outputs = average_answers(self._outputs(self._inputs(rows)), self._averages)
        return {task.name: task.prediction(outputs[task.name]) for task in self.tasks}

    def spread(self, rows: Any) -> dict[str, NDArray[Any]]:
        """Returns how much the networks that serve a task disagree about raw rows.

        Args:
            rows: see `predict`.

        Returns:
            For each task, the standard deviation of the predictions of its networks, in the shape and units of
            `predict`. It is zero for tasks that one network serves.
        """
        outputs = self._outputs(self._inputs(rows))
        members = {
            task.name: [task.prediction(network[task.name]) for network in outputs if task.name in network]
            for task in self.tasks
        }
        return {task: np.std(np.stack(predictions), axis=0) for task, predictions in members.items()}

    def outside(self, rows: Any) -> dict[str, NDArray[np.bool_]]:
        """Returns, for each column of numbers, in which rows they are far outside the range of the training rows.

        Answers to such rows should not be trusted. The result is empty if the inputs are images or the like.

        Args:
            rows: see `predict`.
        """
        return {} if self.table is None else self.table.outside(rows)

    def _inputs(self, rows: Any) -> Tensor:
        inputs: Tensor = _as_inputs(rows, self.example) if self.table is None else self.table.inputs(rows)
        return inputs

    def _outputs(self, inputs: Tensor) -> list[dict[str, Tensor]]:
        found = []
        for network in self.networks:
            like = next(network.parameters(), self.example)
            found.append(outputs_on(network, inputs.to(like.dtype) if inputs.is_floating_point() else inputs))
        return found

    @property
    def _averages(self) -> dict[str, Average | None]:
        return {task.name: task.averaging for task in self.tasks}

    def save(self, out: str | Path, networks: int | None = None) -> Path:
        """Writes the networks to `networks/` in the run's folder: their weights, and all else as JSON.

        Prediction requires no other files.

        Args:
            out: the folder of the run.
            networks: the number of networks for which they are recommended, which names a subfolder; see `load`.
        """
        folder = Path(out) / NETWORKS_FOLDER / ("" if networks is None else str(networks))
        tensors = {EXAMPLE: self.example}
        for number, network in enumerate(self.networks):
            tensors |= {f"{number}.{name}": tensor for name, tensor in network.state_dict().items()}
        content = pack_tensors(tensors)
        # A name of its own, so that earlier weights stay until the document names the new ones.
        weights = f"weights-{checksum(content)[:16]}.safetensors"
        write_atomic(folder / weights, content)
        entries = [{"layers": layers, "width": width} for layers, width in zip(self.layers, self.widths, strict=True)]
        NetworksFile.write(folder / NETWORKS_NAME, _to_document(self) | {"weights": weights, "networks": entries})
        for other in folder.glob("weights-*.safetensors"):
            if other.name != weights:
                other.unlink(missing_ok=True)
        return folder

    @staticmethod
    def load(out: str | Path, *, networks: int | None = None, problem: Problem | None = None) -> Best:
        """Loads networks written by `save`. The files contain no code.

        Args:
            out: the folder of a run or its subfolder `networks/`.
            networks: load what the run recommends for this number of networks, by default for any number.
            problem: the problem that the networks were trained on. It is needed only if their encoder or heads are your
                own, to build them again.

        Raises:
            NetworksFileError: If the folder contains no networks, they are damaged, or the problem is needed.
        """
        folder = Path(out, NETWORKS_FOLDER) if Path(out, NETWORKS_FOLDER).is_dir() else Path(out)
        if networks is not None:
            folder = folder / str(networks)
        file = folder / NETWORKS_NAME
        if networks is not None and not file.exists():
            known = sorted(int(other.parent.name) for other in folder.parent.glob(f"[0-9]*/{NETWORKS_NAME}"))
            raise NetworksFileError("networks", f"must be one of {', '.join(map(str, known))}", str(networks))
        if not file.exists():
            expected = "must be the folder of a finished run"
            raise NetworksFileError(Path(out), expected, f"no {NETWORKS_FOLDER}/{NETWORKS_NAME} in it")
        document = NetworksFile.read(file)
        if problem is None and any(entry.layers is None for entry in document.networks):
            expected = "is needed to build encoders or heads of your own"
            raise NetworksFileError("problem", expected, hint="pass the problem of the study")
        with report_damage(folder / document.weights, NetworksFileError, TRAIN_AGAIN):
            content = (folder / document.weights).read_bytes()
            if checksum(content)[:16] not in document.weights:
                raise ValueError("its checksum does not match")
            tensors = unpack_tensors(content)
        with report_damage(file, NetworksFileError, TRAIN_AGAIN):
            return _read_networks(document, tensors, problem)

    def export(self, folder: str | Path) -> None:
        """Exports the networks for use without tagalong: `torch.export` programs and a script that loads them.

        Args:
            folder: the folder to write to, which is created if it does not exist. The script `load.py` in this folder
                requires only torch.

        Raises:
            InvalidInput: If `torch.export` cannot export a network, e.g. because its layers depend on their inputs.
        """
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        files = [f"network-{number}.pt2" for number in range(1, len(self.networks) + 1)]
        for file, network in zip(files, self.networks, strict=True):
            _export_program(network, self.example, target / file)
        document = _to_document(self) | {"programs": files}
        write_document(target / NETWORKS_NAME, "tagalong-export", NetworksFile.format_version, document)
        write_atomic(
            target / LOADER_SCRIPT, resources.files("tagalong.study").joinpath("export_loader.py").read_bytes()
        )


def keep_best(results: Results, runner: Runner, label: Label | None = None) -> Best:
    """Builds the recommended networks for the seed that performed best on validation.

    Args:
        results: the results of a study. The records contain the networks' store keys.
        runner: the runner that trained the networks.
        label: the method and budget of the networks to build, or None for the recommended networks.
    """
    record = recommended_record(results, label)
    states = [runner.weights(key) for key in record.networks]
    trained = runner.store.results(record.networks)
    widths = [trained[key].job.width for key in record.networks]
    return Best.build(runner.problem, record.groups, states, record.seed, widths)


def recommended_record(results: Results, label: Label | None = None) -> Record:
    """Returns the record whose networks you get for a method and budget, by default the recommended ones."""
    wanted = label or results.verdict().recommended
    usable = [record for record in results.records_of(wanted) if not record.diverged]
    if not usable:
        expected = f"{wanted[0]!r} has no usable networks: with every seed, at least one network diverged"
        raise InvalidInput("", expected, hint="lower `lr`")
    judged = results.verdict().way(wanted)
    if judged is not None:
        return next(record for record in usable if record.seed == judged.seed)
    scale = results.scale
    assert scale is not None
    return max(usable, key=lambda record: scale.mean(record, "val"))


def _served_tasks(problem: Problem) -> tuple[ServedTask, ...]:
    labels: Mapping[str, Any] = getattr(problem.table, "classes", {})
    return tuple(
        ServedTask(
            task.name, task.kind, problem.answer_scales.get(task.name), tuple(labels.get(task.name, ())), task.average
        )
        for task in problem.tasks
    )


def _read_networks(file: NetworksFile, tensors: Mapping[str, Tensor], problem: Problem | None) -> Best:
    tasks = build(tuple[ServedTask, ...], file.tasks, "tasks")
    networks = []
    for number, (entry, group) in enumerate(zip(file.networks, file.groups, strict=True)):
        if entry.layers is not None:
            network = rebuild_network(entry.layers)
        else:
            assert problem is not None
            own = problem.with_network(group.network)
            network = serving_network(own, group, None, member_seed(file.seed, group.copy), entry.width)
        prefix = f"{number}."
        state = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        network.load_state_dict(state, assign=True)
        networks.append(network.eval())
    best = Best(
        groups=file.groups,
        networks=tuple(networks),
        tasks=tasks,
        seed=file.seed,
        table=None if file.table is None else read_preparation(file.table),
        example=tensors[EXAMPLE],
        layers=tuple(entry.layers for entry in file.networks),
        widths=tuple(entry.width for entry in file.networks),
    )
    check_served(best.groups, [task.name for task in tasks])
    # The entries must also fit together.
    if isinstance(best.table, Scaling):
        best.table.inputs(best.example)
    outputs = average_answers(best._outputs(best.example), best._averages)
    for task in tasks:
        task.prediction(outputs[task.name])
    return best


def _as_inputs(rows: Any, example: Tensor) -> Tensor:
    expected = f"must be an array of inputs with {example.dim()} dimensions, the first of which is the rows"
    try:
        inputs = torch.as_tensor(rows)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInput("rows", expected, type(rows).__name__) from error
    if inputs.dim() != example.dim():
        raise InvalidInput("rows", expected, f"the shape {list(inputs.shape)}")
    return inputs


def _to_document(best: Best) -> dict[str, Any]:
    return {
        "seed": best.seed,
        "tasks": [asdict(task) for task in best.tasks],
        "groups": [group.to_document(cost=False) for group in best.groups],
        "table": None if best.table is None else best.table.to_document(),
    }


def _export_program(network: Network, example: Tensor, path: Path) -> None:
    """Exports a network that accepts any number of rows."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecations inside the exporter
            rows = torch.export.Dim.AUTO
            program = torch.export.export(network.eval(), (example,), dynamic_shapes={"inputs": {0: rows}})
            with open_atomic(path) as file:
                torch.export.save(program, file)
    except Exception as error:  # the user's modules can fail in any way
        subject = f"the network for {', '.join(network.tasks)}"
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise InvalidInput(subject, f"could not be exported by torch.export: {reason}") from error
