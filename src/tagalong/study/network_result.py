"""The result of training a network, and how its weights, losses and affinities are converted to bytes."""

from __future__ import annotations

import io
import json
import math
import pickle
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tagalong.affinity import Affinity
from tagalong.files import pack_arrays, unpack_arrays
from tagalong.learn import Job, Trained, first_half
from tagalong.score import Score

from .records import Cost

Losses = dict[str, NDArray[np.float32]]
SPLITS = ("val", "test")
AFFINITY_ARRAYS = ("mean", "stderr", "count", "steps", "history", "null")


@dataclass(frozen=True)
class NetworkResult:
    """The result of training a network, which is returned by workers and written to the store.

    Large fields are stored as bytes. `Store.results` does not read large fields and leaves them empty or None.

    Attributes:
        job: the job that trained the network.
        val: the validation score of each task.
        test: the test score of each task.
        steps: the total number of training steps.
        seconds: the training time in seconds.
        parameters: the number of parameters in the encoder and heads, or 0 if unknown.
        best_epoch: the epoch whose weights were kept, or -1 if training diverged.
        halves: each task's loss on each half of the validation rows. Empty if unknown.
        key: the key in the store (see `Keys`), or an empty string if the result was not read from a store.
        weights: the serialized state dict.
        losses: the validation and test losses on every row.
        affinity: the measured affinity, or None if there was no meter. Measuring the affinity again gives the same
            bytes.
        overhead: the measuring time divided by the training time. Unlike `affinity`, the overhead varies from run to
            run.
        flattery: for each task, an estimate of how much too low its validation loss is because the validation rows
            also chose the epoch (see `Trained`). Empty if unknown.
    """

    job: Job
    val: Mapping[str, Score]
    test: Mapping[str, Score]
    steps: int
    seconds: float
    parameters: int
    best_epoch: int = 0
    halves: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    key: str = ""
    weights: bytes | None = field(default=None, repr=False)
    losses: bytes | None = field(default=None, repr=False)
    affinity: bytes | None = field(default=None, repr=False)
    overhead: float | None = None
    flattery: Mapping[str, float] = field(default_factory=dict)

    @property
    def cost(self) -> Cost:
        """The cost of training this network."""
        return Cost(1, self.steps, self.seconds)

    @property
    def diverged(self) -> bool:
        """Whether training never reached a finite validation loss.

        In that case, all scores are NaN and there are no weights.
        """
        return self.best_epoch < 0


def pack_result(trained: Trained, groups: Tensor | None = None) -> NetworkResult:
    """Converts a trained network to a result that can be stored.

    Args:
        trained: the trained network.
        groups: the group of each validation row. Rows in the same group are assigned to the same half.
    """
    val, test = (
        {task: Score(score.loss, score.error) for task, score in getattr(trained, part).items()} for part in SPLITS
    )
    affinity, overhead = trained.affinity, None
    if affinity is not None:
        settings = dict(affinity.settings)
        overhead = settings.pop("overhead", None)
        affinity = replace(affinity, settings=settings)
    return NetworkResult(
        job=trained.job,
        val=val,
        test=test,
        steps=int(trained.steps),
        seconds=float(trained.seconds),
        parameters=int(trained.parameters),
        best_epoch=int(trained.best_epoch),
        halves=halve_rows({task: score.rows for task, score in trained.val.items()}, groups),
        weights=None if trained.state is None else pack_tensors(trained.state),
        losses=_pack_losses(trained),
        affinity=None if affinity is None else _pack_affinity(affinity),
        overhead=overhead,
        flattery=dict(trained.flattery),
    )


def halve_rows(
    losses: Mapping[str, NDArray[np.float32] | None], groups: Tensor | None = None
) -> dict[str, tuple[float, float]]:
    """Returns each task's mean loss on each half of the rows, or an empty dict if the per-row losses are unknown.

    Args:
        losses: the per-row losses of each task, with NaN for rows without a label.
        groups: the group of each row. Rows in the same group are assigned to the same half.

    Example:
        >>> halve_rows({"age": np.array([1.0, 2.0, 3.0, float("nan")])})
        {'age': (2.0, 2.0)}
    """
    rows = {task: values for task, values in losses.items() if values is not None}
    if len(rows) < len(losses) or not rows:
        return {}
    first = first_half(len(next(iter(rows.values()))), groups).numpy()
    return {task: (_mean_loss(values[first]), _mean_loss(values[~first])) for task, values in rows.items()}


def _mean_loss(losses: NDArray[np.float32]) -> float:
    present = losses[np.isfinite(losses)].astype(np.float64)
    return float(present.mean()) if len(present) else math.nan


def plain_steps(affinity: Affinity, steps: int, runs: int = 1) -> int:
    """Converts the number of steps in a training run with a meter to the equivalent number of plain steps.

    A plain step costs as much as three forward passes, since the backward pass counts as two. Measuring n tasks takes n
    backward passes. Lookahead takes n additional forward passes.

    Args:
        affinity: the measured affinity.
        steps: the number of steps in the training run.
        runs: the number of training runs over which the measured steps are distributed equally.

    Example:
        >>> import numpy as np
        >>> affinity = Affinity.from_history(np.zeros((10, 3, 3)), ["age", "ill", "fit"])
        >>> plain_steps(affinity, 100)
        123
    """
    n = len(affinity.tasks)
    passes = 1 + (3 if affinity.settings.get("estimator", "lookahead") == "lookahead" else 2) * n
    return round(steps + len(affinity.steps) * (passes - 3) / 3 / runs)


def pack_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    """Serializes named tensors, e.g. a state dict."""
    content = io.BytesIO()
    torch.save({name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}, content)
    return content.getvalue()


def unpack_tensors(packed: bytes) -> Any:
    """Deserializes tensors, without running any code."""
    return load_restricted(packed, "tensors", map_location="cpu")


def load_restricted(content: bytes, allowed: str, **options: Any) -> Any:
    """Reads what torch's restricted unpickler allows. Otherwise, torch would advise users to lift the restriction."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about plain pickles
        try:
            return torch.load(io.BytesIO(content), weights_only=True, **options)
        except pickle.UnpicklingError:
            raise ValueError(f"it contains more than {allowed}") from None


def _pack_losses(trained: Trained) -> bytes | None:
    arrays = {}
    for part in SPLITS:
        rows = [getattr(trained, part)[task].rows for task in trained.job.tasks]
        if any(losses is None for losses in rows):
            return None
        with np.errstate(over="ignore"):  # infinite if training nearly diverged
            arrays[part] = np.stack(rows).astype(np.float32)
    return pack_arrays(arrays)


def unpack_losses(packed: bytes, tasks: tuple[str, ...], split: str) -> Losses:
    """Deserializes the per-row losses of each task in a split."""
    return dict(zip(tasks, unpack_arrays(packed, [split])[split], strict=True))


def _pack_affinity(affinity: Affinity) -> bytes:
    about = {"tasks": affinity.tasks, "settings": dict(affinity.settings), "skipped": list(affinity.skipped)}
    arrays: dict[str, Any] = {name: getattr(affinity, name) for name in AFFINITY_ARRAYS}
    arrays |= {f"skipped {i}": counts for i, counts in enumerate(affinity.skipped.values())}
    return pack_arrays(arrays | {"about": np.array(json.dumps(about))})


def unpack_affinity(packed: bytes) -> Affinity:
    """Deserializes an affinity; the result is bit-identical to the original."""
    arrays = unpack_arrays(packed)
    about = json.loads(str(arrays["about"]))
    skipped = {why: arrays[f"skipped {i}"] for i, why in enumerate(about["skipped"])}
    fields = {name: arrays[name] for name in AFFINITY_ARRAYS}
    return Affinity(tasks=tuple(about["tasks"]), settings=about["settings"], skipped=skipped, **fields)
