"""`Score`: the loss and error of a network on one task."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Score:
    """The loss and error of a network on one task, for a set of rows.

    Attributes:
        loss: the mean loss over the labeled rows.
        error: the value of the task's error measure; lower is better. NaN if unknown.
        rows: the loss of each row, with NaN for missing labels, or None if the losses were not kept. Ignored in
            comparisons.

    Two scores are equal if their losses and errors are equal or both NaN.
    """

    loss: float
    error: float
    rows: NDArray[np.float32] | None = field(default=None, repr=False)

    def __eq__(self, other: object) -> bool:
        return self._comparable == other._comparable if isinstance(other, Score) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._comparable)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Tells pydantic how a score is read from a document, where null stands for NaN."""
        from pydantic_core import core_schema

        def build(entry: dict[str, float | None]) -> Score:
            loss, error = entry["loss"], entry["error"]
            return cls(math.nan if loss is None else loss, math.nan if error is None else error)

        number = core_schema.typed_dict_field(core_schema.nullable_schema(core_schema.float_schema()))
        fields = core_schema.typed_dict_schema({"loss": number, "error": number})
        return core_schema.no_info_after_validator_function(build, fields)

    @property
    def _comparable(self) -> tuple[float | None, ...]:
        return tuple(None if math.isnan(value) else value for value in (self.loss, self.error))
