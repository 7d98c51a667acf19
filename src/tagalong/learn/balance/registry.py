"""Balancing rules by name."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from ..network import Network
from ..randomness import drawing
from ..task import Task
from . import torchjd as _torchjd
from .gradnorm import GradNorm
from .rules import Balancer, Plain
from .torchjd import Aggregated, Scalarised

OWN = ("plain", "gradnorm", "gradnorm:ALPHA", "uw", "pcgrad", "pcgrad-uw")


def make_balancer(rule: str, network: Network, tasks: Sequence[Task]) -> Balancer:
    """The rule of this name.

    Args:
        rule: "plain" (the sum), "uw" (Uncertainty Weights), "gradnorm" (with another α: "gradnorm:0.5"), "pcgrad", or
            any aggregator or scalarizer of TorchJD with the arguments it needs ("mgda", "torchjd:CAGrad(c=0.5)"). An
            aggregator's name with "-uw" weighs the losses by Uncertainty Weights first ("pcgrad-uw").
        network: to be trained.
        tasks: of the network, in its order.

    Raises:
        ValueError: no such rule, or it does not fit this number of tasks.
        ImportError: the rule needs a package that is not there; says which.
    """
    if rule == "plain":
        return Plain(tasks)
    if rule.partition(":")[0] == "gradnorm":
        return GradNorm(network, tasks, _alpha(rule))
    name = rule.removeprefix("torchjd:").removesuffix("-uw")
    call, kind = _named(rule, name)
    like = next(network.parameters()).detach()
    made = _torchjd.make(call, kind, len(tasks), like)
    weighs_first = rule.endswith("-uw")
    if not _torchjd.is_aggregator(kind):
        if weighs_first:
            raise ValueError(f"`rule` with '-uw' must be an aggregator's name such as 'pcgrad-uw', found {rule!r}")
        return Scalarised(made, network, tasks)
    weigher = Scalarised(_torchjd.make(*_named("uw", "uw"), len(tasks), like), network, tasks) if weighs_first else None
    return Aggregated(made, network, tasks, weigher, _torchjd.takes_any_number(call, kind))


def check_rule(rule: str, tasks: int = 2) -> None:
    """Refuses, before any training, a rule that does not exist or does not fit so many tasks.

    Example:
        >>> check_rule("gradnorm:0.5")
        >>> check_rule("gradnorm:much")
        Traceback (most recent call last):
        ValueError: `rule` 'gradnorm:ALPHA' needs a number from 0, found 'gradnorm:much'
    """
    names = [str(number) for number in range(tasks)]
    with drawing(0, "check"):
        network = Network(nn.Linear(1, 1), [nn.Linear(1, 1) for _ in names], names)
    make_balancer(rule, network, [Task(name) for name in names])


def _alpha(rule: str) -> float:
    if rule == "gradnorm":
        return 1.5
    try:
        alpha = float(rule.partition(":")[2])
    except ValueError:
        alpha = math.nan
    if not (math.isfinite(alpha) and alpha >= 0):
        raise ValueError(f"`rule` 'gradnorm:ALPHA' needs a number from 0, found {rule!r}")
    return alpha


def _named(rule: str, name: str) -> tuple[_torchjd.Call, type[nn.Module]]:
    call = _torchjd.read_call(name)
    kind = None if call is None else _torchjd.find(call.name)
    if call is None or kind is None:
        known = ", ".join([*OWN, *sorted(_torchjd.kinds())])
        raise ValueError(
            f"`rule` must be one of {known}, with arguments where needed ('CAGrad(c=0.5)'); found {rule!r}"
        )
    return call, kind
