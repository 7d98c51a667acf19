"""What is observed at a measured step: inner products of gradients and steps, and the losses after each step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from tagalong.errors import InvalidInput

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
    """

    def __init__(self, rules: StepRules, gradients: TaskGradients, sources: Sequence[str], *, null: bool) -> None:
        self.rules, self.gradients, self.sources, self.null = rules, gradients, sources, null
        self.parameters = gradients.parameters

    def __len__(self) -> int:
        return len(self.sources) + self.null

    def gradient(
        self, row: int, indices: Sequence[int] | None = None, rows: Sequence[Tensor] | None = None
    ) -> Gradient:
        """Returns the weighted gradient for one step: zero for the null step, which comes last.

        It is computed now, unless the gradients of all sources are kept in `rows`, one matrix per parameter.
        """
        parameters = self.parameters if indices is None else [self.parameters[i] for i in indices]
        if row == len(self.sources):
            return [torch.zeros_like(p) for p in parameters]
        task = self.sources[row]
        if rows is None:
            return self.gradients.gradient(task, weighted=True)
        weight, touched = self.gradients.weights[task], self.gradients.touched[task]
        return [
            (matrix[row] * weight).view(p.shape).to(p.dtype) if index in touched else None
            for index, matrix, p in zip(indices or range(len(rows)), rows, parameters, strict=True)
        ]

    def step(self, gradient: Gradient, indices: Sequence[int]) -> list[Tensor]:
        origin = [self.parameters[i].data for i in indices]
        step = [torch.zeros_like(p) for p in origin]
        self.rules.add_step(step, indices, gradient, origin)
        return step

    def losses_after(self, replay: Callable[[], Tensor], rows: Sequence[Tensor] | None) -> Tensor:
        """Returns the target losses L_j(θ + Δθ_i) after each step.

        The parameters are moved in place by one step at a time, and restored, even if an error is raised.

        Args:
            replay: A function that replays the closure and returns the target losses.
            rows: The gradients of the sources, if they are kept.
        """
        values = [p.data for p in self.parameters]
        saved = copy_tensors(values)
        after = []
        try:
            for row in range(len(self)):
                torch._foreach_copy_(values, saved)
                self.rules.add_step(values, range(len(values)), self.gradient(row, rows=rows), saved)
                after.append(replay())
        finally:
            torch._foreach_copy_(values, saved)
        return torch.stack(after)

    def slopes(
        self, indices: Sequence[int], source_rows: Sequence[Tensor], target_rows: Sequence[Tensor], device: torch.device
    ) -> Tensor:
        """Returns ⟨g_j, −Δθ_i⟩ on some of the parameters [steps, targets]."""

        def effects(row: int) -> Tensor:  # [parameters, targets]
            step = self.step(self.gradient(row, indices, source_rows), indices)
            pairs = zip(target_rows, step, strict=True)
            return torch.stack([-(matrix @ part.reshape(-1).to(matrix.dtype)).to(device) for matrix, part in pairs])

        factor = self.rules.slope(indices)
        if factor is None:
            return torch.stack([effects(row).sum(0) for row in range(len(self))])
        # Δθ_i = Δθ(0) + c w_i g_i on the parameters that task i uses, so inner products of gradients suffice.
        products = [(s @ t.T).to(device) for s, t in zip(source_rows, target_rows, strict=True)]
        gram = torch.stack(products).sum(0)
        weights = [self.gradients.weights[task] for task in self.sources]
        slopes = torch.stack([row * weight * -factor for row, weight in zip(gram, weights, strict=True)])
        if self.rules.idle:
            return slopes
        null_effects = effects(len(self.sources))
        used = [[index in self.gradients.touched[task] for index in indices] for task in self.sources]
        slopes += torch.tensor(used).to(null_effects) @ null_effects
        return torch.cat([slopes, null_effects.sum(0, keepdim=True)]) if self.null else slopes


def inner_products(
    source_steps: SourceSteps,
    targets: Sequence[str],
    target_gradients: TaskGradients | None,
    present: Sequence[str],
    needs: frozenset[Quantity],
    *,
    memory: float,
    local: bool,
    device: torch.device,
) -> tuple[dict[str, Tensor], list[Tensor] | None]:
    """Computes the slopes and cosines in `needs`, in blocks of parameters whose gradients fit in memory.

    Args:
        source_steps: The steps on the sources, and the gradients that they are taken on.
        targets: The target tasks.
        target_gradients: The gradients of the held-out losses, if there are any.
        present: All tasks with a loss in the closure, whose mean gradient is subtracted for centered cosines.
        needs: The names of the quantities, as in `Observed`.
        memory: The number of bytes available for gradients.
        local: Whether held-out gradients, and therefore slopes, are only this rank's contribution to the sum.
        device: The device for the results.

    Returns:
        The quantities by name, and the gradients of the sources if all of them fit in memory at once.
    """
    # The tasks whose losses in the closure are differentiated, starting with the sources.
    tasks, held_out_gradients = list(source_steps.sources), 0
    if target_gradients is None:
        tasks += [task for task in targets if task not in tasks]
    else:
        held_out_gradients = len(targets)
        tasks += [task for task in present if task not in tasks and "centered_cosines" in needs]
    blocks = source_steps.gradients.blocks(len(tasks) + held_out_gradients, memory)
    if len(blocks) > 1 and not source_steps.rules.separable:
        raise InvalidInput(
            "gradient_memory",
            "must be large enough for the gradients of all tasks with this optimizer",
            f"{memory:.0f} bytes",
            "increase `gradient_memory`, or use `update='sgd'` or `estimator='lookahead'`",
        )
    sums: dict[str, list[Tensor]] = {}
    for indices in blocks:
        rows = source_steps.gradients.rows(tasks, indices)
        source_rows = [matrix[: len(source_steps.sources)] for matrix in rows]
        if target_gradients is not None:
            target_rows = target_gradients.rows(targets, indices, local=local)
        elif list(targets) == tasks:
            target_rows = rows
        else:
            target_rows = [matrix[[tasks.index(task) for task in targets]] for matrix in rows]
        for name, terms in _terms(source_steps, needs, indices, source_rows, target_rows, rows, device):
            earlier = sums.get(name, [torch.zeros((), device=device)] * len(terms))
            sums[name] = [a + b.to(device) for a, b in zip(earlier, terms, strict=True)]
        if len(blocks) > 1:  # frees these gradients before those of the next block are computed
            del rows, source_rows, target_rows

    quantities = {name: terms[0] for name, terms in sums.items()}
    for name in sums.keys() - {"slopes"}:
        compute = _centered_cosines if name == "centered_cosines" else _cosines
        quantities[name] = compute(*sums[name])[: len(source_steps.sources)]
        if source_steps.null:  # a row that keeps the rows of all quantities aligned; estimators of cosines ignore it
            quantities[name] = torch.cat([quantities[name], torch.zeros_like(quantities[name][:1])])
    # In a single block, the rows are whole gradients, which the lookahead reuses.
    return quantities, source_rows if len(blocks) == 1 else None


def _terms(
    source_steps: SourceSteps,
    needs: frozenset[Quantity],
    indices: Sequence[int],
    source_rows: Sequence[Tensor],
    target_rows: Sequence[Tensor],
    centering_rows: Sequence[Tensor],
    device: torch.device,
) -> Iterator[tuple[str, Sequence[Tensor]]]:
    """Yields the slopes, and for each parameter inner products with squared norms (or with Gram matrices)."""
    if "slopes" in needs:
        yield "slopes", [source_steps.slopes(indices, source_rows, target_rows, device)]
    for index, s, t, c in zip(indices, source_rows, target_rows, centering_rows, strict=True):
        if "centered_cosines" in needs:
            yield "centered_cosines", (c @ t.T, c @ c.T, t @ t.T)
        if "cosines" in needs:
            yield "cosines", (s @ t.T, _squared_norms(s), _squared_norms(t))
        if "kernel_cosines" in needs:
            elements = None if source_steps.parameters[index].dim() > 1 else 0
            s, t = s[:, :elements], t[:, :elements]
            yield "kernel_cosines", (s @ t.T, _squared_norms(s), _squared_norms(t))


def _squared_norms(rows: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return norms.square()


def _cosines(inner: Tensor, squared_source_norms: Tensor, squared_target_norms: Tensor) -> Tensor:
    """Divides inner products by norms, which yields NaN (counted as skipped) if a gradient is zero."""
    return inner / torch.outer(squared_source_norms.sqrt(), squared_target_norms.sqrt())


def _centered_cosines(inner: Tensor, of_sources: Tensor, of_targets: Tensor) -> Tensor:
    """Returns the cosines after subtracting the mean gradient from the sources and from the targets.

    With G the inner products and P = 1 − 11ᵀ/n, the inner products of centered gradients are P G P.
    """
    if min(inner.shape) < 3:
        return _cosines(inner, of_sources.diagonal(), of_targets.diagonal())
    return _cosines(_centered(inner), _centered_squares(of_sources), _centered_squares(of_targets))


def _centered_squares(gram: Tensor) -> Tensor:
    """Returns the squared norms of centered gradients, or NaN if only rounding errors remain of them."""
    squares = _centered(gram).diagonal()
    return torch.where(squares > ROUNDING * gram.diagonal().mean(), squares, torch.nan)


def _centered(gram: Tensor) -> Tensor:
    return gram - gram.mean(0) - gram.mean(1, keepdim=True) + gram.mean()
