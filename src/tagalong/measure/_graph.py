"""What a loss was computed from, read off its autograd graph."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Tensor
from torch.autograd.graph import Node


@dataclass
class Reach:
    """The leaves that some losses depend on, and what of their graph gets in a replay's way.

    Attributes:
        leaves: By id.
        reentrant: Whether a reentrant checkpoint hides more of them.
        compiled: Whether torch.compile made part of the graph.
        cudnn_rnn: Whether a recurrent network of cuDNN did.
        earlier: Those of the leaves that are reached through what was computed before the closure ran.
        latest: The largest number of a node.
    """

    leaves: dict[int, Tensor] = field(default_factory=dict)
    reentrant: bool = False
    compiled: bool = False
    cudnn_rnn: bool = False
    earlier: dict[int, Tensor] = field(default_factory=dict)
    latest: int = 0


def reach(losses: Iterable[Tensor], began: int = 0) -> Reach:
    """Walks the graph of `losses` back to its leaves.

    Args:
        losses: Where to start.
        began: Nodes with a smaller number were made before and are listed as `earlier`.
    """
    return _walk({loss.grad_fn for loss in losses if loss.grad_fn is not None}, began)


def _walk(seen: set[Node], began: int) -> Reach:
    found = Reach()
    waiting = list(seen)
    earlier: set[Node] = set()
    while waiting:
        node = waiting.pop()
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, Tensor):
            found.leaves[id(leaf)] = leaf
        else:
            found.latest = max(found.latest, node._sequence_nr())
            if node._sequence_nr() < began:
                earlier.add(node)
        found.compiled |= node.name().startswith("CompiledFunction")
        found.cudnn_rnn |= node.name().startswith("CudnnRnn")
        found.reentrant |= node.name().startswith("CheckpointFunctionBackward")
        for parent, _ in node.next_functions:
            if parent is not None and parent not in seen:
                seen.add(parent)
                waiting.append(parent)
    if earlier:
        before = _walk(earlier, 0)
        # A node is made after those it leads to. One that leads to newer ones was numbered by another thread, such
        # as the one that differentiates on a GPU, and such numbers say nothing.
        found.earlier = before.leaves if before.latest < began else {}
    return found
