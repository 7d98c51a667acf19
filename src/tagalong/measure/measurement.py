"""One measured step: how a training step on each task alone would change the losses of all tasks.

1. The closure has just run, which gave the losses before the step. Under data parallelism, ranks average them.
2. Every task with a finite loss can be a source, whose loss is differentiated with respect to the shared parameters,
   and a target, whose loss is compared before and after a step. The schedule may choose some of them.
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
from functools import partial

import numpy as np
import torch
from torch import Tensor

from .closure import ReplayableClosure, raise_closure_problems
from .distributed import Replicas, agree_on_losses, raise_on_all_ranks
from .estimators import Observed
from .gradients import GradientSum, TaskGradients
from .history import HostCopy, Reading
from .observation import SourceSteps, first_order
from .problems import (
    NO_SHARED_PARAMETER,
    NO_TASK_HAS_A_LOSS,
    closure_notes,
    graph_problems,
    loss_problems,
    repeat_problems,
    step_notes,
)
from .setup import Setup

Chosen = tuple[Sequence[str], Sequence[str]]  # sources and targets


def measure_step(
    setup: Setup,
    tasks: Sequence[str],
    main: ReplayableClosure,
    held_out: ReplayableClosure | None,
    choose: Callable[[list[str], list[str]], Chosen],
    replicas: Replicas,
    *,
    chosen: Chosen | None = None,
    call: int,
    is_first: bool,
    capture: GradientSum | None = None,
) -> tuple[Reading | None, list[str]]:
    """Measures one step; the order is that of the module's docstring.

    Args:
        setup: The meter's settings.
        tasks: All task names.
        main: The user's closure, which has already run.
        held_out: The closure that computes the target losses, if different from `main`; it has already run.
        choose: A function that selects sources and targets from the tasks that can be sources and targets.
        replicas: The ranks that measure together.
        chosen: The sources and targets, if tasks have closures of their own and only those of these tasks have run.
        call: The number of previous calls to the meter.
        is_first: Whether nothing has been measured before.
        capture: A sum to which the task gradients are added, for training.

    Returns:
        The affinities of this step (None if there is nothing to measure), and notes on what makes them less useful.
    """
    # 1. Losses. Problems on any rank raise an error on all of them.
    target_closure = held_out or main
    closures = [main] if held_out is None else [main, held_out]
    problems = [problem for closure in closures for problem in closure.losses.problems]
    for closure in closures:
        predicates = [*loss_problems(closure, tasks, setup, is_first=is_first, compared=closure is target_closure)]
        predicates += graph_problems(closure, tasks, setup) if closure.verify else []
        problems += [f"the {closure.what} {predicate}" for predicate in predicates]
    agreed = agree_on_losses([closure.losses for closure in closures], tasks, problems, call, replicas)
    losses, target_losses = agreed[0], agreed[-1]

    # 2. Sources and targets. The losses of the closure are those before the step, unless there are held-out losses.
    main_losses, before = np.array(losses.values), np.array(target_losses.values)
    present = [task for task, value in zip(tasks, main_losses, strict=True) if np.isfinite(value)]
    comparable = [task for task, value in zip(tasks, before, strict=True) if np.isfinite(value)]
    parameters = setup.trainable()
    if not present or not comparable or not parameters:  # `shared` may be frozen temporarily
        diverged = np.isnan(main_losses).all() and len(main.losses.by_task) == len(tasks) > 0
        return None, [NO_TASK_HAS_A_LOSS] if diverged else []
    skipped = [task for task, value in zip(tasks, before, strict=True) if setup.uses_ratios and value <= 0]
    notes = [f"`{task}` has a zero or negative loss, so that affinities onto it are skipped." for task in skipped]
    if main.verify:
        raise_on_all_ranks([p for closure in closures for p in repeat_problems(closure, tasks)], replicas)
        notes += closure_notes(main, tasks, setup)
    if main.verify or held_out is not None:
        main.restore_end()  # so that a function given as `weights` sees what the closure wrote
    sources, targets = choose(present, comparable) if chosen is None else chosen
    sources, targets = [t for t in sources if t in present], [t for t in targets if t in comparable]
    if not sources or not targets:
        return None, notes

    # 3. What computes the gradients and steps; nothing is computed yet
    differentiate = partial(TaskGradients, tasks=tasks, parameters=parameters, scale=setup.scale(), replicas=replicas)
    gradients = differentiate(main, losses, weights=setup.task_weights(tasks), capture=capture)
    target_gradients = None if held_out is None else differentiate(held_out, target_losses)
    rules = setup.step_rules(parameters)
    null = len(sources) < len(tasks) and setup.uses_steps and not rules.idle
    source_steps = SourceSteps(rules, gradients, sources, null=null)

    # 4. Inner products of gradients and steps, and losses after each step
    columns = [tasks.index(task) for task in targets]
    observed = Observed(target_losses.mean[columns])
    if setup.uses_gradients:
        device = observed.before.device
        quantities = first_order(source_steps, targets, target_gradients, present, setup.needs, device)
        observed = Observed(observed.before, **quantities)
    if "after" in setup.needs:
        share = target_losses.share[columns]

        def replay() -> Tensor:
            values = target_closure.replay(targets).stacked(targets)
            return values if replicas.alone else torch.where(share > 0, values.to(share) * share, 0.0)

        observed.after = replicas.sum([source_steps.losses_after(replay)])[0]
    if replicas.alone and not any(gradients.touched.values()):
        raise_closure_problems([f"the closure {NO_SHARED_PARAMETER}"])
    if main.verify:
        notes += step_notes(observed, target_closure, moves=rules.moves)

    # 5. Affinities
    missing = np.logical_or.outer(np.isnan(main_losses), np.isnan(before))
    if chosen is not None:  # the others have not run, so their labels may well be there
        missing &= np.logical_and.outer(np.isin(tasks, chosen[0]), np.isin(tasks, chosen[1]))
    infinite = ~missing & np.logical_or.outer(np.isinf(main_losses), np.isinf(before))
    number = {id(p): k for k, p in enumerate(setup.parameters)}
    touched = {t: {number[id(parameters[i])] for i in indices} for t, indices in gradients.touched.items()}
    reading = Reading(
        sources,
        targets,
        HostCopy(torch.stack([estimator(observed).to(observed.before) for estimator in setup.estimators])),
        idle=rules.idle,
        lr=rules.lr if setup.per_lr and setup.uses_steps else 1.0,
        before=before,
        skipped={"missing": missing, "non-finite loss": infinite},
        finite=gradients.finite + (target_gradients.finite if target_gradients is not None else []),
        touched=touched,
    )
    return reading, notes
