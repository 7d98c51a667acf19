"""What ranks must agree on before any gradient: the tasks, which of them are there, and whether all is well."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ._errors import raise_all
from ._ledger import task_names
from ._losses import TaskLosses
from ._replicas import Replicas
from ._stage import Stage

_ELSEWHERE = "the closure cannot be measured on another rank; the error there tells why."
_UNEQUAL = (
    "ranks have called the meter different numbers of times. Give every rank the same number of batches "
    "(DistributedSampler(..., drop_last=True), say) and call the meter for each of them."
)


@dataclass
class Found:
    """What a closure gave on this rank.

    Attributes:
        losses: As returned.
        values: By task, NaN where missing.
        numbers: The same, read by the host.
    """

    losses: TaskLosses
    values: Tensor
    numbers: list[float]


@dataclass
class Told:
    """Losses of one closure as all ranks see them.

    Attributes:
        losses: This rank's; among several ranks, without those that do not count.
        mean: L = Σ w_r L_r / Σ w_r over ranks, NaN where no rank has the task.
        share: This rank's w_r / Σ w_r.
        values: `mean`, read by the host.
    """

    losses: TaskLosses
    mean: Tensor
    share: Tensor
    values: list[float]


def agreed_tasks(given: tuple[str, ...] | None, main: Stage, replicas: Replicas) -> tuple[str, ...]:
    """The names of all tasks: those given, or else those that the closure of any rank returned."""
    here = [name for name in main.returned if isinstance(name, str)] if isinstance(main.returned, Mapping) else []
    if replicas.alone:
        return given or tuple(here)
    everyone = replicas.gathered((given, here))
    different = {names for names, _ in everyone if names is not None}
    if len(different) > 1:
        raise_all([f"`tasks` differ between ranks: {sorted(different)}; name the same, in the same order."])
    found = tuple(dict.fromkeys(name for _, names in everyone for name in names))
    return different.pop() if different else task_names(found) if found else ()


def agreed_losses(
    found: Sequence[Found], tasks: Sequence[str], problems: Sequence[str], call: int, replicas: Replicas
) -> list[Told]:
    """One collective; raises, on every rank, if a closure of any rank cannot be measured.

    Args:
        found: What the closures gave on this rank.
        tasks: All task names.
        problems: What is wrong on this rank.
        call: How often the meter was called before.
        replicas: The ranks to agree with.
    """
    if replicas.alone:
        raise_all(problems)
        return [Told(here.losses, here.values, torch.ones_like(here.values), here.numbers) for here in found]
    call %= 1 << 20  # squares stay exact
    weights = [replicas.home(_weights(here, tasks)) for here in found]
    own = [torch.where(w > 0, replicas.home(here.values), 0.0) * w for here, w in zip(found, weights, strict=True)]
    facts = own[0].new_tensor([float(len(problems)), call, call * call])
    message = torch.cat([*own, *weights, facts])
    replicas.add_up(message)
    *sums, elsewhere, calls, squares = message.split([len(tasks)] * (2 * len(found)) + [1, 1, 1])
    raise_all(problems)
    if elsewhere.item():
        raise_all([_ELSEWHERE])
    if squares.item() - 2 * call * calls.item() + replicas.size * call * call:  # Σ (a rank's calls − mine)²
        raise_all([_UNEQUAL])
    return [
        Told(_counted(here, w, tasks), total / all_weights, w / all_weights, (total / all_weights).tolist())
        for here, w, total, all_weights in zip(found, weights, sums, sums[len(found) :], strict=False)
    ]


def raise_everywhere(problems: Iterable[str], replicas: Replicas) -> None:
    """Raises on every rank if there are problems on any."""
    here = list(problems)
    elsewhere = sum(replicas.gathered(len(here)))
    raise_all(here)
    if elsewhere:
        raise_all([_ELSEWHERE])


def _weights(here: Found, tasks: Sequence[str]) -> Tensor:
    """What each loss counts among ranks; 0 where it is missing."""
    given = [torch.as_tensor(here.losses.weights.get(task, 0.0)).to(here.values) for task in tasks]
    return torch.where(here.values.isnan(), 0.0, torch.stack(given)) if given else here.values


def _counted(here: Found, weights: Tensor, tasks: Sequence[str]) -> TaskLosses:
    """The losses that count: a NaN, differentiated, would spoil the sum over ranks even with a share of 0."""
    counted = {task for task, weight in zip(tasks, weights.tolist(), strict=True) if weight > 0}
    return TaskLosses({t: x for t, x in here.losses.losses.items() if t in counted}, here.losses.weights)
