import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _fresh_accelerate() -> Iterator[None]:
    """Resets accelerate, which keeps its settings for the whole process."""
    _reset()
    yield
    _reset()


def _reset() -> None:
    state = sys.modules.get("accelerate.state")
    if state is not None:
        for kept in (state.AcceleratorState, state.GradientState, state.PartialState):
            kept._reset_state()
