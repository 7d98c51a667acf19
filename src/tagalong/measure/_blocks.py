"""Gradients of many tasks as rows of matrices, in blocks of parameters that fit into memory."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ._gradients import TaskGradients
from .steps import Piece, Steps, split


@dataclass(frozen=True)
class Block:
    """Some pieces of the shared parameters, of one device, that are worked on together.

    Weights with more than one dimension come first: they are the leading `kernels` numbers of a row.
    """

    pieces: tuple[Piece, ...]
    sizes: tuple[int, ...]
    kernels: int
    device: torch.device
    dtype: torch.dtype

    @property
    def size(self) -> int:
        return sum(self.sizes)

    def of(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The block's part of tensors shaped like the shared parameters."""
        return [piece.of(tensors[piece.index]) for piece in self.pieces]

    def views(self, row: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
        """One row of the block's matrix, cut and shaped like the pieces."""
        parts = row.split(list(self.sizes))
        return [part.view(like.shape) for part, like in zip(parts, self.of(parameters), strict=True)]


def rows_bytes(parameters: Sequence[Tensor], rows: int) -> int:
    """Bytes of the gradients of `rows` tasks."""
    return sum(p.numel() for p in parameters) * rows * _dtype(parameters).itemsize


def fits(parameters: Sequence[Tensor], rows: int, limit: float) -> bool:
    """Whether the gradients of `rows` tasks may be held together."""
    return rows_bytes(parameters, rows) <= limit


def _dtype(parameters: Sequence[Tensor]) -> torch.dtype:
    return torch.float64 if any(p.dtype == torch.float64 for p in parameters) else torch.float32


def plan_blocks(parameters: Sequence[Tensor], rows: int, limit: float, steps: Steps) -> tuple[list[Block], bool]:
    """Cuts the shared parameters into blocks whose `rows` gradients fit into `limit` bytes.

    Tensors are cut too where the step is computed number by number; otherwise a block holds one tensor at least.

    Returns:
        The blocks, and whether all of them fit together, so that every gradient is computed once.
    """
    dtype = _dtype(parameters)
    room = max(1, int(limit // (rows * dtype.itemsize)))
    held = fits(parameters, rows, limit)
    if not held and not steps.separable:
        raise ValueError(
            f"the gradients of all tasks need more than `gradient_memory` ({limit:.0f} bytes), and this optimiser is "
            "not known to step each tensor by itself, so they cannot be worked on in blocks; raise "
            "`gradient_memory`, or use update='sgd' or estimator='lookahead'."
        )
    longest = room if steps.elementwise else max(p.numel() for p in parameters)
    order = sorted(range(len(parameters)), key=lambda i: (str(parameters[i].device), parameters[i].dim() < 2))
    blocks: list[list[Piece]] = [[]]
    size = 0
    for piece in (piece for index in order for piece in split(index, parameters[index], longest)):
        number = piece.of(parameters[piece.index]).numel()
        device = parameters[piece.index].device
        if blocks[-1] and (size + number > room or parameters[blocks[-1][-1].index].device != device):
            blocks.append([])
            size = 0
        blocks[-1].append(piece)
        size += number
    return [_block(pieces, parameters, dtype) for pieces in blocks], held


def _block(pieces: Sequence[Piece], parameters: Sequence[Tensor], dtype: torch.dtype) -> Block:
    sizes = tuple(piece.of(parameters[piece.index]).numel() for piece in pieces)
    kernels = sum(size for piece, size in zip(pieces, sizes, strict=True) if parameters[piece.index].dim() > 1)
    return Block(tuple(pieces), sizes, kernels, parameters[pieces[0].index].device, dtype)


def gradient_matrices(
    gradients: TaskGradients,
    tasks: Sequence[str],
    blocks: Sequence[Block],
    parameters: Sequence[Tensor],
    *,
    whole: bool,
    own: bool = False,
) -> list[Tensor]:
    """For every block a matrix with one task's gradient per row.

    Args:
        whole: Whether `blocks` are all there are; otherwise only their parameters are differentiated for.
        own: Whether this rank's part is enough.
    """
    indices = sorted({piece.index for block in blocks for piece in block.pieces})
    matrices = [torch.empty(len(tasks), block.size, dtype=block.dtype, device=block.device) for block in blocks]
    for row, task in enumerate(tasks):
        found = dict(zip(indices, gradients.here(task, weighted=False, only=None if whole else indices), strict=True))
        for block, matrix in zip(blocks, matrices, strict=True):
            values = [piece.of(found[piece.index]) for piece in block.pieces]
            torch._foreach_copy_(block.views(matrix[row], parameters), values)
        del found, values  # or two gradients would be there beside the rows while the next is computed
        if not own:
            gradients.add_up([matrix[row] for matrix in matrices])
    return matrices
