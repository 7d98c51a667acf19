"""Parts of parameter tensors, so that work on many or on huge tensors needs bounded memory."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Piece:
    """Rows `start` to `stop` of the shared parameter number `index`; all of it where `stop` is None."""

    index: int
    start: int = 0
    stop: int | None = None

    def of(self, tensor: Tensor) -> Tensor:
        return tensor if self.stop is None else tensor[self.start : self.stop]


def split(index: int, tensor: Tensor, limit: int) -> Iterator[Piece]:
    """Cuts one tensor into pieces of at most `limit` numbers (one row at least)."""
    if tensor.numel() <= limit or tensor.dim() == 0:
        yield Piece(index)
        return
    rows = max(1, limit * tensor.shape[0] // tensor.numel())
    for start in range(0, tensor.shape[0], rows):
        yield Piece(index, start, min(start + rows, tensor.shape[0]))


def chunks(tensors: Sequence[Tensor], limit: int) -> Iterator[tuple[list[int], list[slice]]]:
    """Groups tensors, cut along the first dimension where large, into chunks of about `limit` numbers.

    Yields:
        Positions in `tensors` and, for each, the rows (or ``...`` for a scalar) that belong to the chunk.
    """
    positions: list[int] = []
    rows: list[slice] = []
    size = 0
    for position, tensor in enumerate(tensors):
        for piece in split(position, tensor, limit):
            part = piece.of(tensor).numel()
            if positions and size + part > limit:
                yield positions, rows
                positions, rows, size = [], [], 0
            positions.append(position)
            rows.append(slice(piece.start, piece.stop))
            size += part
    if positions:
        yield positions, rows


def cut(tensors: Sequence[Tensor], positions: Iterable[int], rows: Iterable[slice]) -> list[Tensor]:
    return [tensors[p] if r.stop is None else tensors[p][r] for p, r in zip(positions, rows, strict=True)]
