"""Numbers on their way from a device to the host."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Arriving:
    """Starts a copy to the host; whatever is launched before `numbers` is asked for runs in the meantime."""

    def __init__(self, values: Tensor) -> None:
        self._here = values.detach()
        self._there: torch.cuda.Event | None = None
        if values.device.type not in ("cuda", "cpu"):
            self._here = self._here.cpu()
        elif values.device.type == "cuda":
            self._here = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._here.copy_(values, non_blocking=True)
            self._there = torch.cuda.Event()
            self._there.record(torch.cuda.current_stream(values.device))

    def numbers(self) -> NDArray[np.float64]:
        """Waits for these numbers only, not for what was launched after them."""
        if self._there is not None:
            self._there.synchronize()
        return self._here.numpy().astype(np.float64)
