"""One measured step: how a training step on each task alone would change the losses of all tasks.

1. The closure has just run, which gave the losses before the step. Under data parallelism, ranks average them.
2. Every task with a finite loss can be a source, whose loss is differentiated with respect to the shared parameters,
   and a target, whose loss is compared before and after a step. The schedule may choose some of the sources.
3. The rules of the optimizer turn each source's gradient into the step that training on this task alone would take. If
   only some tasks are sources, the step on a zero gradient (the null step, which momentum and weight decay cause) is
   observed like another source. Affinities are stored relative to it, so that they stay comparable between steps.
4. Gradients are computed when they are needed. First-order estimators need inner products of gradients and steps. For
   the lookahead, one source at a time: the shared parameters move by its step, the closure is replayed from the same
   random state and buffers, and the parameters are restored.
5. Each estimator computes the affinities from what was observed. They stay on the device as a reading, which the
   meter's history copies to the host later, so that training does not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from .closure import ReplayableClosure, raise_closure_problems
from .distributed import agree_on_losses, agree_on_tasks, raise_on_all_ranks
from .estimators import Observed, Quantity
from .gradients import TaskGradients, TrainingGradient
from .history import HostCopy, MeterHistory, Reading
from .isolation import copy_tensors
from .problems import (
    NO_SHARED_PARAMETER,
    NO_TASK_HAS_A_LOSS,
    ONLY_ONE_TASK,
    closure_problems,
    repeat_problems,
    step_notes,
)
from .schedules import Schedule
from .setup import Setup
from .steps import StepRules, make_step_rules


def measure_step(
    setup: Setup,
    history: MeterHistory,
    main: ReplayableClosure,
    held_out: ReplayableClosure | None,
    schedule: Schedule,
    call: int,
    training_gradient: TrainingGradient | None = None,
) -> tuple[Reading | None, list[str]]:
    """Measures one step; the order is that of the module's docstring.

    Args:
        setup: The meter's settings.
        history: What has been measured before.
        main: The user's closure, which has already run.
        held_out: The closure that computes the target losses, if different from `main`; it has already run.
        schedule: The schedule, which chooses the sources.
        call: The number of previous calls to the meter.
        training_gradient: Adds up the weighted task gradients, for `AffinityMeter.backward`.

    Returns:
        The affinities of this step (None if there is nothing to measure), and notes on what makes them less useful.
    """
    # 1. Losses. Problems on any rank raise an error on all of them.
    replicas, target_closure = setup.replicas, held_out or main
    closures = [main] if held_out is None else [main, held_out]
    tasks = agree_on_tasks(history.tasks, main.names, replicas) if main.verify else history.tasks or ()
    is_first = not history.source_counts
    problems = [
        problem
        for closure in closures
        for problem in closure_problems(closure, tasks, setup, is_first=is_first, compared=closure is target_closure)
    ]
    agreed = agree_on_losses(closures, tasks, problems, call, replicas)
    agreed_main, agreed_targets = agreed[0], agreed[-1]  # the same without held-out losses
    main_losses, before = np.array(agreed_main.mean.tolist()), np.array(agreed_targets.mean.tolist())
    notes = [] if is_first or not replicas.alone else history.note_changed_tasks(main.names)

    # 2. Sources and targets. The losses of the closure are those before the step, unless there are held-out losses.
    present = [task for task, loss in zip(tasks, main_losses, strict=True) if np.isfinite(loss)]
    targets = [task for task, loss in zip(tasks, before, strict=True) if np.isfinite(loss)]
    if not present or not targets or not setup.trainable():  # `shared` may be frozen temporarily
        diverged = np.isnan(main_losses).all() and len(main.losses.by_task) == len(tasks) > 0
        return None, [*notes, NO_TASK_HAS_A_LOSS] if diverged else notes
    if main.verify:
        raise_on_all_ranks([p for closure in closures for p in repeat_problems(closure, tasks)], replicas)
    if main.verify or held_out is not None:
        main.restore_end()  # so that a function given as `weights` sees what the closure wrote
    sources = schedule.choose(present, history.source_counts, setup.seed)
    if not sources:
        return None, notes

    # 3. What computes the gradients and steps; nothing is computed yet. The null step follows those on the sources.
    gradients = TaskGradients(main, agreed_main, tasks, setup, setup.task_weights(tasks), training_gradient)
    target_gradients = gradients if held_out is None else TaskGradients(held_out, agreed_targets, tasks, setup)
    rules = make_step_rules(gradients.parameters, setup.optimizers, setup.update, setup.lr)
    sources_and_null: list[str | None] = [*sources]
    if len(sources) < len(tasks) and setup.uses_steps and not rules.idle:
        sources_and_null.append(None)

    # 4. Inner products of gradients and steps, and losses after each step
    columns = [tasks.index(task) for task in targets]
    observed = Observed(agreed_targets.mean[columns])
    if setup.uses_gradients:
        quantities = first_order(setup.needs, rules, gradients, sources_and_null, target_gradients, targets, present)
        observed = Observed(observed.before, **{name: x.to(observed.before.device) for name, x in quantities.items()})
    if "after" in setup.needs:

        def replay() -> Tensor:
            return target_closure.replay(targets).stacked(targets)

        share, after = agreed_targets.share[columns], losses_after(rules, gradients, sources_and_null, replay)
        if not replicas.alone:
            after = torch.where(share > 0, after.to(share) * share, 0.0)
        observed.after = replicas.sum([after])[0]
    if replicas.alone and not any(gradients.touched.values()):
        raise_closure_problems([f"the closure {NO_SHARED_PARAMETER}"])
    if main.verify:
        notes += step_notes(observed, target_closure, moves=rules.moves)
    if not history.has_pairs and len({*sources, *targets}) == 1:
        notes.append(ONLY_ONE_TASK)
    negative = [task for task, loss in zip(tasks, before, strict=True) if setup.uses_ratios and loss <= 0]
    notes += [f"`{task}` has a zero or negative loss, so that affinities onto it are skipped." for task in negative]

    # 5. Affinities
    missing = np.logical_or.outer(np.isnan(main_losses), np.isnan(before))
    infinite = ~missing & np.logical_or.outer(np.isinf(main_losses), np.isinf(before))
    number = {id(p): k for k, p in enumerate(setup.parameters)}
    touched = {t: {number[id(gradients.parameters[i])] for i in indices} for t, indices in gradients.touched.items()}
    reading = Reading(
        tasks,
        sources,
        targets,
        HostCopy(torch.stack([estimator(observed).to(observed.before) for estimator in setup.estimators])),
        idle=rules.idle,
        lr=rules.lr if setup.per_lr and setup.uses_steps else 1.0,
        before=before,
        skipped={"missing": missing, "non-finite loss": infinite},
        finite=[*gradients.finite, *target_gradients.finite],
        touched=touched,
    )
    return reading, notes


ROUNDING = 1e-6  # a centered gradient this much smaller (squared) than the gradients is lost in float32

Sources = Sequence[str | None]  # tasks, and None for the null step
Matrices = Sequence[Tensor]  # gradients, one matrix [tasks, elements] per parameter


def losses_after(
    rules: StepRules, gradients: TaskGradients, sources_and_null: Sources, replay: Callable[[], Tensor]
) -> Tensor:
    """Returns the target losses L_j(θ + Δθ_i) after the step on each source, as `replay` returns them.

    The parameters are moved in place by one step at a time, and restored, even if an error is raised.
    """
    values = [p.data for p in gradients.parameters]
    saved = copy_tensors(values)
    after = []
    try:
        for source in sources_and_null:
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
    sources_and_null: Sources,
    target_gradients: TaskGradients,
    targets: Sequence[str],
    present: Sequence[str],
) -> dict[str, Tensor]:
    """Computes the slopes and cosines in `needs`, and keeps the gradients of the sources.

    Args:
        needs: The names of the quantities, as in `Observed`.
        rules: The rules of the optimizers for a step on a gradient.
        gradients: The gradients of the sources.
        sources_and_null: The sources, and None for the null step.
        target_gradients: The gradients of the target losses, which are the same without held-out losses.
        targets: The target tasks.
        present: All tasks with a loss in the closure, whose mean gradient is subtracted for centered cosines.
    """
    # The tasks whose losses in the closure are differentiated, starting with the sources.
    sources = [task for task in sources_and_null if task is not None]
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
    if None in sources_and_null:  # a row that keeps the rows of all quantities aligned; estimators of cosines ignore it
        quantities = {name: torch.cat([values, torch.zeros_like(values[:1])]) for name, values in quantities.items()}
    if "slopes" in needs:
        quantities["slopes"] = slopes(rules, gradients, sources_and_null, target_rows)
    return quantities


def slopes(rules: StepRules, gradients: TaskGradients, sources_and_null: Sources, target_rows: Matrices) -> Tensor:
    # Returns ⟨g_j, −Δθ_i⟩ [steps, targets].
    origin = [p.data for p in gradients.parameters]
    device = target_rows[0].device
    rows = []
    for source in sources_and_null:
        step = [torch.zeros_like(p) for p in origin]
        rules.add_step(step, gradients.for_step(source), origin)
        products = [matrix @ part.reshape(-1).to(matrix.dtype) for matrix, part in zip(target_rows, step, strict=True)]
        rows.append(-torch.stack([product.to(device) for product in products]).sum(0))
    return torch.stack(rows)


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
