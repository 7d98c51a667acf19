"""What can be wrong with a closure, looked for once, before anything is measured."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from ._graph import reach
from ._setup import Setup
from ._stage import Stage

UNREACHED = (
    "no loss depends on any parameter of `shared`; pass the module that the closure calls (not a copy), and check for "
    ".detach() or torch.no_grad() between it and the losses."
)


def structure_problems(stage: Stage, setup: Setup, tasks: Sequence[str]) -> Iterable[str]:
    """What the graph of the losses and the modules behind them give away."""
    what, found = stage.what, reach(stage.losses.losses.values(), stage.began)
    shared = {id(p) for p in setup.trainable()}
    if len(tasks) < 2:
        yield (
            f"there is only one task, {list(tasks)}; affinity is between tasks: return the loss of each by name, not "
            "their sum, or name all tasks with `tasks=[...]` if a batch holds only some."
        )
    if not setup.models and (found.compiled or stage.compiled):
        yield (
            f"the {what} calls compiled code, whose modules cannot be watched; pass `model=` with all modules that "
            "the closure calls."
        )
    if stage.lazy:
        yield (
            f"the {what} calls lazy modules that have no shape yet ({', '.join(stage.lazy)}); run the model once "
            "before measuring."
        )
    elif stage.written:
        yield (
            f"the {what} writes {', '.join(stage.written)}, which is not undone when it is run again; write "
            "parameters after the optimiser's step, register other tensors as buffers, and use torch.autograd.grad "
            "inside the closure instead of .backward()."
        )
    if found.cudnn_rnn and any(_inner_dropout(module) for module in stage.modules()):
        yield (
            f"the {what} uses dropout inside a recurrent network of cuDNN, whose random state cannot be put back; "
            "use single layers with nn.Dropout between them, or torch.backends.cudnn.flags(enabled=False)."
        )
    if found.reentrant:
        yield (
            f"the {what} uses reentrant checkpointing, which hides the shared parameters from task gradients; "
            "call torch.utils.checkpoint.checkpoint(..., use_reentrant=False)."
        )
    elif shared & found.earlier.keys() and not any(isinstance(m, nn.DataParallel) for m in stage.modules()):
        # (The threads of DataParallel number their nodes on their own.)
        yield (
            f"the {what} goes on from what was computed of the shared parameters before it ran, which running it again "
            "does not compute anew; put the whole forward pass of the shared layers into the closure."
        )
    elif what == "closure" and found.leaves and not shared & found.leaves.keys():
        yield UNREACHED


def repeat_problems(stage: Stage, tasks: Sequence[str]) -> Iterable[str]:
    """Whether the closure, run once more unchanged, gives the same losses."""
    first, again = stage.losses.losses, stage.replay().losses
    differ = [task for task in tasks if not _same(first.get(task), again.get(task))]
    if differ:
        yield (
            f"the {stage.what} cannot be repeated: run again with the same weights, buffers and random state it gave "
            f"other losses of {differ}. It must use the same batch each time (fetch it outside the closure), and no "
            "generator of its own, counter or cache that the first run moved."
        )


def _inner_dropout(module: nn.Module) -> bool:
    return isinstance(module, nn.RNNBase) and module.training and module.dropout > 0 and module.num_layers > 1


def _same(first: Tensor | None, again: Tensor | None) -> bool:
    """Equal up to what kernels that add in no fixed order do to a loss."""
    if first is None or again is None:
        return first is again
    tolerance = min(64 * torch.finfo(first.dtype).eps, 1e-3)
    return bool(torch.isclose(first.detach(), again.detach(), rtol=tolerance, atol=0.0, equal_nan=True))
