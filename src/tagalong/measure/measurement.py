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

import numpy as np
import torch
from torch import Tensor

from .closure import ReplayableClosure, raise_closure_problems
from .distributed import agree_on_losses, agree_on_tasks, raise_on_all_ranks
from .estimators import Observed
from .gradients import GradientSum, TaskGradients
from .history import HostCopy, MeterHistory, Reading
from .observation import first_order, losses_after
from .problems import (
    NO_SHARED_PARAMETER,
    NO_TASK_HAS_A_LOSS,
    closure_notes,
    closure_problems,
    repeat_problems,
    step_notes,
)
from .setup import Setup

Chosen = tuple[Sequence[str], Sequence[str]]  # sources and targets


def measure_step(
    setup: Setup,
    history: MeterHistory,
    main: ReplayableClosure,
    held_out: ReplayableClosure | None,
    choose: Callable[[Sequence[str], Sequence[str]], Chosen],
    call: int,
    training: GradientSum | None = None,
) -> tuple[Reading | None, list[str]]:
    """Measures one step; the order is that of the module's docstring.

    Args:
        setup: The meter's settings.
        history: What has been measured before.
        main: The user's closure, which has already run.
        held_out: The closure that computes the target losses, if different from `main`; it has already run.
        choose: A function that selects sources and targets from the tasks that can be sources and targets.
        call: The number of previous calls to the meter.
        training: A sum to which the weighted task gradients are added, for training.

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
    main_losses, before = np.array(agreed[0].mean.tolist()), np.array(agreed[-1].mean.tolist())
    notes = [] if is_first or not replicas.alone else history.note_changed_tasks(main.names)

    # 2. Sources and targets. The losses of the closure are those before the step, unless there are held-out losses.
    present = [task for task, loss in zip(tasks, main_losses, strict=True) if np.isfinite(loss)]
    comparable = [task for task, loss in zip(tasks, before, strict=True) if np.isfinite(loss)]
    if not present or not comparable or not setup.trainable():  # `shared` may be frozen temporarily
        diverged = np.isnan(main_losses).all() and len(main.losses.by_task) == len(tasks) > 0
        return None, [*notes, NO_TASK_HAS_A_LOSS] if diverged else notes
    if main.verify:
        raise_on_all_ranks([p for closure in closures for p in repeat_problems(closure, tasks)], replicas)
        notes += closure_notes(main, tasks, setup)
    if main.verify or held_out is not None:
        main.restore_end()  # so that a function given as `weights` sees what the closure wrote
    sources, targets = choose(present, comparable)
    if not sources or not targets:
        return None, notes

    # 3. What computes the gradients and steps; nothing is computed yet. The null step follows those on the sources.
    gradients = TaskGradients(main, agreed[0], tasks, setup, setup.task_weights(tasks), training)
    target_gradients = gradients if held_out is None else TaskGradients(held_out, agreed[1], tasks, setup)
    rules = setup.step_rules(gradients.parameters)
    steps: list[str | None] = [*sources]
    if len(sources) < len(tasks) and setup.uses_steps and not rules.idle:
        steps.append(None)

    # 4. Inner products of gradients and steps, and losses after each step
    columns = [tasks.index(task) for task in targets]
    observed = Observed(agreed[-1].mean[columns])
    if setup.uses_gradients:
        quantities = first_order(setup.needs, rules, gradients, steps, target_gradients, targets, present)
        observed = Observed(observed.before, **{name: x.to(observed.before.device) for name, x in quantities.items()})
    if "after" in setup.needs:

        def replay() -> Tensor:
            return target_closure.replay(targets).stacked(targets)

        share, after = agreed[-1].share[columns], losses_after(rules, gradients, steps, replay)
        if not replicas.alone:
            after = torch.where(share > 0, after.to(share) * share, 0.0)
        observed.after = replicas.sum([after])[0]
    if replicas.alone and not any(gradients.touched.values()):
        raise_closure_problems([f"the closure {NO_SHARED_PARAMETER}"])
    if main.verify:
        notes += step_notes(observed, target_closure, moves=rules.moves)
    negative = [task for task, loss in zip(tasks, before, strict=True) if setup.uses_ratios and loss <= 0]
    notes += [f"`{task}` has a zero or negative loss, so that affinities onto it are skipped." for task in negative]

    # 5. Affinities
    of_main, of_targets = (np.isin(tasks, closure.needed or tasks) for closure in (main, target_closure))
    missing = np.logical_or.outer(np.isnan(main_losses), np.isnan(before)) & np.logical_and.outer(of_main, of_targets)
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
