"""The networks of a record: the seeds of its copies, and how to rebuild trained networks from their weights."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.nn.utils import parametrize

from tagalong.group import Group
from tagalong.learn import Network, Problem, build_network, derive_seed


def member_seed(seed: int, copy: int) -> int:
    """Returns the seed of a copy in the record of a seed. Copy 0 has the seed of the record.

    Different records share no copies, so their results are independent.

    Example:
        >>> member_seed(3, 0)
        3
        >>> len({member_seed(seed, copy) for seed in range(10) for copy in range(10)})
        100
    """
    return derive_seed(seed, "copy", copy) if copy else seed


def serving_network(
    problem: Problem, group: Group, state: Mapping[str, Tensor] | None, seed: int, width: float = 1.0
) -> Network:
    """Rebuilds a trained network, in evaluation mode, with heads only for the tasks that it serves.

    Args:
        problem: the problem that the network was trained on, with the network's kind (see `Problem.with_network`).
        group: the tasks that the network is trained on and serves.
        state: the weights of the whole network, or None to keep its initial weights.
        seed: the seed with which the network was trained.
        width: the width of the network.
    """
    whole = build_network(problem, group.trains, seed, width)
    if state is not None:
        whole.load_state_dict(state)
    heads = {task: head for task, head in zip(whole.tasks, whole.heads, strict=True) if task in group.serves}
    return _without_parametrizations(Network(whole.encoder, list(heads.values()), list(heads), seed).eval())


def _without_parametrizations(network: Network) -> Network:
    """Replaces parametrizations (e.g. weight norm), which torch cannot pickle, with the weights that they compute."""
    for module in network.modules():
        for name in list(getattr(module, "parametrizations", ())) if parametrize.is_parametrized(module) else ():
            parametrize.remove_parametrizations(module, name, leave_parametrized=True)
    return network
