"""What is observed at a measured step: inner products of gradients and steps, and the losses after each step.

`steps` are the sources whose steps are taken, and None for the null step, the step on a zero gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .estimators import Quantity
from .gradients import TaskGradients
from .steps import StepRules
from .tensors import copy_tensors

ROUNDING = 1e-6  # a centered gradient this much smaller (squared) than the gradients is lost in float32

Steps = Sequence[str | None]
Matrices = Sequence[Tensor]  # gradients, one matrix [tasks, elements] per parameter


def losses_after(rules: StepRules, gradients: TaskGradients, steps: Steps, replay: Callable[[], Tensor]) -> Tensor:
    """Returns the target losses L_j(θ + Δθ_i) after each step, as `replay` returns them.

    The parameters are moved in place by one step at a time, and restored, even if an error is raised.
    """
    values = [p.data for p in gradients.parameters]
    saved = copy_tensors(values)
    after = []
    try:
        for source in steps:
            torch._foreach_copy_(values, saved)
            rules.add_step(values, gradients.for_step(source), saved)
            after.append(replay())
    finally:
        torch._foreach_copy_(values, saved)
    return torch.stack(after)


def first_order(
    needs: frozenset[Quantity],
    rules: StepRules,
    gradients: TaskGradients,
    steps: Steps,
    target_gradients: TaskGradients,
    targets: Sequence[str],
    present: Sequence[str],
) -> dict[str, Tensor]:
    """Computes the slopes and cosines in `needs`, and keeps the gradients of the sources.

    Args:
        needs: The names of the quantities, as in `Observed`.
        rules: The rules of the optimizers for a step on a gradient.
        gradients: The gradients of the sources.
        steps: The sources, and None for the null step.
        target_gradients: The gradients of the target losses, which are the same without held-out losses.
        targets: The target tasks.
        present: All tasks with a loss in the closure, whose mean gradient is subtracted for centered cosines.
    """
    # The tasks whose losses in the closure are differentiated, starting with the sources.
    sources = [task for task in steps if task is not None]
    also = targets if target_gradients is gradients else present if "centered_cosines" in needs else ()
    tasks = [*sources, *(task for task in also if task not in sources)]
    rows = gradients.keep(tasks)
    source_rows = [matrix[: len(sources)] for matrix in rows]
    if target_gradients is not gradients:
        target_rows = target_gradients.keep(targets)
    elif list(targets) == tasks:
        target_rows = rows
    else:
        target_rows = [matrix[[tasks.index(task) for task in targets]] for matrix in rows]

    quantities = {}
    if "cosines" in needs:
        quantities["cosines"] = _cosines(source_rows, target_rows)
    if "kernel_cosines" in needs:
        ends = [None if p.dim() > 1 else 0 for p in gradients.parameters]
        source_kernels = [matrix[:, :end] for matrix, end in zip(source_rows, ends, strict=True)]
        target_kernels = [matrix[:, :end] for matrix, end in zip(target_rows, ends, strict=True)]
        quantities["kernel_cosines"] = _cosines(source_kernels, target_kernels)
    if "centered_cosines" in needs:
        quantities["centered_cosines"] = _centered_cosines(rows, target_rows)[: len(sources)]
    if None in steps:  # a row that keeps the rows of all quantities aligned; estimators of cosines ignore it
        quantities = {name: torch.cat([values, torch.zeros_like(values[:1])]) for name, values in quantities.items()}
    if "slopes" in needs:
        quantities["slopes"] = slopes(rules, gradients, steps, source_rows, target_rows)
    return quantities


def slopes(
    rules: StepRules, gradients: TaskGradients, steps: Steps, source_rows: Matrices, target_rows: Matrices
) -> Tensor:
    # Returns ⟨g_j, −Δθ_i⟩ [steps, targets].
    device = target_rows[0].device

    def effects(source: str | None) -> Tensor:  # [parameters, targets]
        origin = [p.data for p in gradients.parameters]
        step = [torch.zeros_like(p) for p in origin]
        rules.add_step(step, gradients.for_step(source), origin)
        pairs = zip(target_rows, step, strict=True)
        return torch.stack([-(matrix @ part.reshape(-1).to(matrix.dtype)).to(device) for matrix, part in pairs])

    factor = rules.slope(len(gradients.parameters))
    if factor is None:
        return torch.stack([effects(source).sum(0) for source in steps])
    # Δθ_i = Δθ(0) + c w_i g_i on the parameters that task i uses, so inner products of gradients suffice.
    sources = [task for task in steps if task is not None]
    products = zip(sources, inner_products(source_rows, target_rows), strict=True)
    result = torch.stack([row * gradients.weight(task) * -factor for task, row in products])
    if rules.idle:
        return result
    null_effects = effects(None)
    used = [[k in gradients.touched[task] for k in range(len(null_effects))] for task in sources]
    result += torch.tensor(used).to(null_effects) @ null_effects
    return torch.cat([result, null_effects.sum(0, keepdim=True)]) if None in steps else result


def inner_products(rows: Matrices, columns: Matrices) -> Tensor:
    products = [row @ column.T for row, column in zip(rows, columns, strict=True)]
    return torch.stack([product.to(products[0].device) for product in products]).sum(0)


def _cosines(source_rows: Matrices, target_rows: Matrices) -> Tensor:
    # Divides inner products by norms, which yields NaN (counted as skipped) if a gradient is zero.
    products = inner_products(source_rows, target_rows)
    norms = []
    for rows in (source_rows, target_rows):
        of_parameters = torch.stack([torch.linalg.vector_norm(matrix, dim=1).to(products.device) for matrix in rows])
        norms.append(torch.linalg.vector_norm(of_parameters, dim=0))
    return products / torch.outer(*norms)


def _centered_cosines(rows: Matrices, target_rows: Matrices) -> Tensor:
    """Returns the cosines after subtracting the mean gradient from `rows` and from the targets.

    With G the inner products and P = 1 − 11ᵀ/n, the inner products of centered gradients are P G P.
    """
    inner = inner_products(rows, target_rows)
    if min(inner.shape) < 3:  # two centered gradients are always opposite
        return _cosines(rows, target_rows)
    norms = []
    for matrices in (rows, target_rows):
        gram = inner_products(matrices, matrices)
        squares = _centered(gram).diagonal()
        # NaN if only rounding errors remain of a gradient
        norms.append(torch.where(squares > ROUNDING * gram.diagonal().mean(), squares, torch.nan).sqrt())
    return _centered(inner) / torch.outer(*norms)


def _centered(gram: Tensor) -> Tensor:
    return gram - gram.mean(0) - gram.mean(1, keepdim=True) + gram.mean()
