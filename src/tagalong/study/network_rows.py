"""A trained network as a row of the store: small enough to read by the thousand, its large parts packed as bytes."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from tagalong.affinity import Affinity
from tagalong.learn import Job, Score, Trained

from .records import Cost, Outcome

Losses = dict[str, NDArray[np.float32]]
AFFINITY = ("mean", "stderr", "count", "steps", "history", "null")


@dataclass(frozen=True)
class Row:
    """A trained network, without its large parts.

    Attributes:
        key: see `Keys`.
        job: what was trained.
        val: validation loss and error of each task.
        test: test loss and error of each task.
        steps: taken in all.
        seconds: spent.
        parameters: of encoder and heads.
        best_epoch: whose weights were kept; -1 where training diverged.
        halves: the loss of each task on either half of the validation rows; empty where it was not kept.
    """

    key: str
    job: Job
    val: Mapping[str, Outcome]
    test: Mapping[str, Outcome]
    steps: int
    seconds: float
    parameters: int
    best_epoch: int
    halves: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def cost(self) -> Cost:
        """What this network took."""
        return Cost(1, self.steps, self.seconds)

    @property
    def diverged(self) -> bool:
        """Whether no validation loss was finite: then all outcomes are NaN, and there are no weights."""
        return self.best_epoch < 0


@dataclass(frozen=True)
class Packed:
    """A trained network as workers send it and the store keeps it: plain text and bytes.

    Attributes:
        job: what was trained.
        scores: JSON, validation and test loss and error of each task.
        steps: taken in all.
        seconds: spent.
        parameters: of encoder and heads.
        best_epoch: whose weights were kept; -1 where training diverged.
        curve: the validation losses of each epoch, float32.
        weights: a state dict.
        losses: validation and test loss of every row.
        affinity: what a meter measured, if there was one; the same bytes whenever it is measured.
        overhead: seconds of measuring per second of training, which are not.
    """

    job: Job
    scores: str
    steps: int
    seconds: float
    parameters: int
    best_epoch: int
    curve: bytes = field(repr=False)
    weights: bytes | None = field(default=None, repr=False)
    losses: bytes | None = field(default=None, repr=False)
    affinity: bytes | None = field(default=None, repr=False)
    overhead: float | None = None


def pack(trained: Trained, groups: Tensor | None = None) -> Packed:
    """A trained network as text and bytes.

    Args:
        trained: the network.
        groups: which validation rows belong together, so that halves do not share any.
    """
    scores: dict[str, Any] = {part: _plain(getattr(trained, part)) for part in ("val", "test")}
    scores["halves"] = _halves(trained.val, groups)
    affinity, overhead = trained.affinity, None
    if affinity is not None:
        timeless = dict(affinity.settings)
        overhead = timeless.pop("overhead", None)
        affinity = replace(affinity, settings=timeless)
    return Packed(
        job=trained.job,
        scores=json.dumps(scores, allow_nan=False),
        steps=int(trained.steps),
        seconds=float(trained.seconds),
        parameters=int(trained.parameters),
        best_epoch=int(trained.best_epoch),
        curve=_single(trained.curve).tobytes(),
        weights=None if trained.state is None else pack_weights(trained.state),
        losses=_pack_losses(trained),
        affinity=None if affinity is None else pack_affinity(affinity),
        overhead=overhead,
    )


def read_scores(text: str) -> tuple[dict[str, Outcome], dict[str, Outcome]]:
    """Validation and test outcomes from their JSON."""
    document = json.loads(text)
    val, test = ({task: Outcome(*map(_number, pair)) for task, pair in document[part].items()} for part in PARTS)
    return val, test


def read_halves(text: str) -> dict[str, tuple[float, float]]:
    """Losses on either half of the validation rows, from the same JSON."""
    halves = json.loads(text).get("halves", {})
    return {task: (_number(pair[0]), _number(pair[1])) for task, pair in halves.items()}


PARTS = ("val", "test")


def _single(losses: ArrayLike) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # infinite where training nearly diverged
        return np.asarray(losses).astype(np.float32)


def _plain(scores: Mapping[str, Score]) -> dict[str, list[float | None]]:
    return {task: [_or_none(score.loss), _or_none(score.error)] for task, score in scores.items()}


def _halves(scores: Mapping[str, Score], groups: Tensor | None) -> dict[str, list[float | None]]:
    rows = {task: score.rows for task, score in scores.items() if score.rows is not None}
    if len(rows) < len(scores) or not rows:
        return {}
    number = np.arange(len(next(iter(rows.values()))))
    if groups is not None:
        number = np.unique(groups.numpy(), return_inverse=True)[1]
    parts = [number % 2 == half for half in (0, 1)]
    return {task: [_or_none(_mean(losses[part])) for part in parts] for task, losses in rows.items()}


def _mean(losses: NDArray[np.float32]) -> float:
    present = losses[np.isfinite(losses)].astype(np.float64)
    return float(present.mean()) if len(present) else math.nan


def _or_none(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)


def pack_weights(state: Mapping[str, Tensor]) -> bytes:
    """A state dict as bytes."""
    content = io.BytesIO()
    torch.save({name: tensor.detach().cpu().clone() for name, tensor in state.items()}, content)
    return content.getvalue()


def unpack_weights(content: bytes) -> dict[str, Tensor]:
    """The state dict again."""
    state: dict[str, Tensor] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return state


def _pack_losses(trained: Trained) -> bytes | None:
    arrays = {}
    for part in PARTS:
        rows = [getattr(trained, part)[task].rows for task in trained.job.tasks]
        if any(losses is None for losses in rows):
            return None
        arrays[part] = _single(np.stack(rows))
    return _npz(arrays)


def unpack_losses(content: bytes, tasks: tuple[str, ...], part: str) -> Losses:
    """The loss of every row of a part, by task."""
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return dict(zip(tasks, arrays[part], strict=True))


def pack_affinity(affinity: Affinity) -> bytes:
    """An affinity as bytes."""
    about = {"tasks": affinity.tasks, "settings": dict(affinity.settings), "skipped": list(affinity.skipped)}
    arrays: dict[str, Any] = {name: getattr(affinity, name) for name in AFFINITY}
    arrays |= {f"skipped {i}": counts for i, counts in enumerate(affinity.skipped.values())}
    return _npz(arrays | {"about": np.array(json.dumps(about))})


def unpack_affinity(content: bytes) -> Affinity:
    """The affinity again, bit for bit."""
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        about = json.loads(str(arrays["about"]))
        skipped = {why: arrays[f"skipped {i}"] for i, why in enumerate(about["skipped"])}
        fields = {name: arrays[name] for name in AFFINITY}
    return Affinity(tasks=tuple(about["tasks"]), settings=about["settings"], skipped=skipped, **fields)


def _npz(arrays: Mapping[str, Any]) -> bytes:
    content = io.BytesIO()
    np.savez(content, **arrays)
    return content.getvalue()
