"""What is observed at a measured step: inner products of gradients and steps, and the losses after each step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .estimators import Quantity
from .gradients import Gradient, TaskGradients
from .isolation import copy_tensors
from .steps import StepRules

ROUNDING = 1e-6  # a centered gradient this much smaller (squared) than the gradients is lost in float32


class SourceSteps:
    """The steps Δθ_i that the optimizer would take on the loss of each source task i alone.

    Args:
        rules: The rules of the optimizers for a step on a gradient.
        gradients: The gradients of the sources.
        sources: The source tasks.
        null: Whether the last step is the null step, on a zero gradient.

    Attributes:
        rows: The gradients of the sources if they are kept, one matrix [sources, elements] per parameter.
    """

    def __init__(self, rules: StepRules, gradients: TaskGradients, sources: Sequence[str], *, null: bool) -> None:
        self.rules, self.gradients, self.sources, self.null = rules, gradients, sources, null
        self.parameters = gradients.parameters
        self.rows: list[Tensor] | None = None

    def __len__(self) -> int:
        return len(self.sources) + self.null

    def gradient(self, row: int) -> Gradient:
        """Returns the weighted gradient for one step: zero for the null step, which comes last."""
        if row == len(self.sources):
            return [torch.zeros_like(p) for p in self.parameters]
        task = self.sources[row]
        if self.rows is None:
            return self.gradients.gradient(task, weighted=True)
        weight, touched = self.gradients.weights[task], self.gradients.touched[task]
        return [
            (matrix[row] * weight).view(p.shape).to(p.dtype) if index in touched else None
            for index, (matrix, p) in enumerate(zip(self.rows, self.parameters, strict=True))
        ]

    def losses_after(self, replay: Callable[[], Tensor]) -> Tensor:
        """Returns the target losses L_j(θ + Δθ_i) after each step, as `replay` returns them.

        The parameters are moved in place by one step at a time, and restored, even if an error is raised.
        """
        values = [p.data for p in self.parameters]
        saved = copy_tensors(values)
        after = []
        try:
            for row in range(len(self)):
                torch._foreach_copy_(values, saved)
                self.rules.add_step(values, self.gradient(row), saved)
                after.append(replay())
        finally:
            torch._foreach_copy_(values, saved)
        return torch.stack(after)

    def slopes(self, source_rows: Sequence[Tensor], target_rows: Sequence[Tensor], device: torch.device) -> Tensor:
        """Returns ⟨g_j, −Δθ_i⟩ [steps, targets]."""

        def effects(row: int) -> Tensor:  # [parameters, targets]
            origin = [p.data for p in self.parameters]
            step = [torch.zeros_like(p) for p in origin]
            self.rules.add_step(step, self.gradient(row), origin)
            pairs = zip(target_rows, step, strict=True)
            return torch.stack([-(matrix @ part.reshape(-1).to(matrix.dtype)).to(device) for matrix, part in pairs])

        factor = self.rules.slope(len(self.parameters))
        if factor is None:
            return torch.stack([effects(row).sum(0) for row in range(len(self))])
        # Δθ_i = Δθ(0) + c w_i g_i on the parameters that task i uses, so inner products of gradients suffice.
        weights = [self.gradients.weights[task] for task in self.sources]
        products = inner_products(source_rows, target_rows, device)
        slopes = torch.stack([row * weight * -factor for row, weight in zip(products, weights, strict=True)])
        if self.rules.idle:
            return slopes
        null_effects = effects(len(self.sources))
        used = [[k in self.gradients.touched[task] for k in range(len(null_effects))] for task in self.sources]
        slopes += torch.tensor(used).to(null_effects) @ null_effects
        return torch.cat([slopes, null_effects.sum(0, keepdim=True)]) if self.null else slopes


def first_order(
    source_steps: SourceSteps,
    targets: Sequence[str],
    target_gradients: TaskGradients | None,
    present: Sequence[str],
    needs: frozenset[Quantity],
    device: torch.device,
) -> dict[str, Tensor]:
    """Computes the slopes and cosines in `needs`, and keeps the gradients of the sources.

    Args:
        source_steps: The steps on the sources, and the gradients that they are taken on.
        targets: The target tasks.
        target_gradients: The gradients of the held-out losses, if there are any.
        present: All tasks with a loss in the closure, whose mean gradient is subtracted for centered cosines.
        needs: The names of the quantities, as in `Observed`.
        device: The device for the results.
    """
    # The tasks whose losses in the closure are differentiated, starting with the sources.
    number, tasks = len(source_steps.sources), list(source_steps.sources)
    if target_gradients is None:
        tasks += [task for task in targets if task not in tasks]
    elif "centered_cosines" in needs:
        tasks += [task for task in present if task not in tasks]
    rows = source_steps.gradients.rows(tasks)
    source_steps.rows = source_rows = [matrix[:number] for matrix in rows]
    if target_gradients is not None:
        target_rows = target_gradients.rows(targets)
    elif list(targets) == tasks:
        target_rows = rows
    else:
        target_rows = [matrix[[tasks.index(task) for task in targets]] for matrix in rows]

    cosines = {}
    if "cosines" in needs:
        cosines["cosines"] = _cosines(source_rows, target_rows, device)
    if "kernel_cosines" in needs:
        ends = [None if p.dim() > 1 else 0 for p in source_steps.parameters]
        source_kernels = [matrix[:, :end] for matrix, end in zip(source_rows, ends, strict=True)]
        target_kernels = [matrix[:, :end] for matrix, end in zip(target_rows, ends, strict=True)]
        cosines["kernel_cosines"] = _cosines(source_kernels, target_kernels, device)
    if "centered_cosines" in needs:
        cosines["centered_cosines"] = _centered_cosines(rows, target_rows, device)[:number]
    if source_steps.null:  # a row that keeps the rows of all quantities aligned; estimators of cosines ignore it
        cosines = {name: torch.cat([values, torch.zeros_like(values[:1])]) for name, values in cosines.items()}
    if "slopes" in needs:
        return {**cosines, "slopes": source_steps.slopes(source_rows, target_rows, device)}
    return cosines


def inner_products(rows: Sequence[Tensor], columns: Sequence[Tensor], device: torch.device) -> Tensor:
    """Returns the inner products of gradients [rows, columns], of which each parameter has a matrix."""
    products = [(row @ column.T).to(device) for row, column in zip(rows, columns, strict=True)]
    return torch.stack(products).sum(0)


def _cosines(source_rows: Sequence[Tensor], target_rows: Sequence[Tensor], device: torch.device) -> Tensor:
    """Divides inner products by norms, which yields NaN (counted as skipped) if a gradient is zero."""
    norms = []
    for rows in (source_rows, target_rows):
        of_parameters = torch.stack([torch.linalg.vector_norm(matrix, dim=1).to(device) for matrix in rows])
        norms.append(torch.linalg.vector_norm(of_parameters, dim=0))
    return inner_products(source_rows, target_rows, device) / torch.outer(*norms)


def _centered_cosines(rows: Sequence[Tensor], target_rows: Sequence[Tensor], device: torch.device) -> Tensor:
    """Returns the cosines after subtracting the mean gradient from `rows` and from the targets.

    With G the inner products and P = 1 − 11ᵀ/n, the inner products of centered gradients are P G P.
    """
    inner = inner_products(rows, target_rows, device)
    if min(inner.shape) < 3:  # two centered gradients are always opposite
        return _cosines(rows, target_rows, device)
    norms = []
    for matrices in (rows, target_rows):
        gram = inner_products(matrices, matrices, device)
        squares = _centered(gram).diagonal()
        # NaN if only rounding errors remain of a gradient
        norms.append(torch.where(squares > ROUNDING * gram.diagonal().mean(), squares, torch.nan).sqrt())
    return _centered(inner) / torch.outer(*norms)


def _centered(gram: Tensor) -> Tensor:
    return gram - gram.mean(0) - gram.mean(1, keepdim=True) + gram.mean()
