"""`tagalong group`: the best networks for a table of scores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from . import _arguments as arguments
from . import _group_options as options


def group(
    file: options.File,
    budget: options.BudgetOption = None,
    budgets: options.BudgetsOption = None,
    cost: options.CostOption = None,
    max_cost: options.MaxCostOption = None,
    axis: options.AxisOption = options.Axis.source,
    objective: options.ObjectiveOption = options.Objective.max,
    tasks: options.TasksOption = None,
    average: options.AverageOption = None,
    complete: options.CompleteOption = None,
    weights: options.WeightsOption = None,
    allow_single: options.SingleOption = None,
    max_size: options.MaxSizeOption = None,
    must_link: options.MustOption = None,
    cannot_link: options.CannotOption = None,
    solver: options.SolverOption = options.Solver.auto,
    time_limit: options.TimeOption = None,
    seed: options.SeedOption = 0,
    resamples: options.ResamplesOption = None,
    explain: options.ExplainOption = None,
    together: options.TogetherOption = False,
    compare: options.CompareOption = None,
    out: options.OutOption = None,
    json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Chooses the networks to train: at most so many, each task served by one, helpers where they help.

    FILE tells what it is by what it holds:

    - a square table with names in the first line and the first column: **the row helps the column**
    - an affinity saved by tagalong
    - a table of results with a column `group` (`age+ill`), one column per task, perhaps one called `cost`
    - the same as JSON: `{tasks, matrix}`, `{source: {target: value}}` or a list of `{trains, values, cost}`

    Ctrl-C during a long search gives the best found so far; once more leaves.

    Examples:
        `tagalong group affinity.csv --budget 3`: at most three networks
        `tagalong group losses.csv --objective min --compare mine.yaml`: what a grouping made by hand loses
    """
    from tagalong.group import Comparison, read_table  # on demand: whoever asks for help need not wait for scipy

    from ._group_answer import budgets_wanted, check_tasks, check_together, completed, given, narrowed, select
    from ._group_file import save, to_json
    from ._group_page import Page

    check_together(budget, budgets, compare, bool(explain or together), out)
    table = read_table(file, axis.value)
    costs = arguments.cost(cost, table.tasks)
    table = narrowed(table, arguments.names(tasks) if tasks is not None else None, average and average.value)
    rules: dict[str, Any] = {
        "objective": objective.value,
        "allow_single": allow_single,
        "max_size": max_size,
        "cost": costs,
        "max_cost": max_cost,
        "must_link": arguments.links(must_link or [], "must_link"),
        "cannot_link": arguments.links(cannot_link or [], "cannot_link"),
        "weights": arguments.weights(weights or []),
        **completed(table, complete is not None, allow_single),
    }
    search = {"solver": solver.value, "time_limit": time_limit, "seed": seed, "resamples": resamples}
    mine = given(compare, table, rules)
    wanted = budgets_wanted(budget, budgets, mine, table, costs=cost is not None)
    check_tasks(explain or [], table)
    answer = select(file, table, wanted, rules | search, quiet or json)
    if mine is not None:
        answer = replace(answer, comparison=Comparison(mine, answer.groupings[0]), compared=compare)
    if out is not None:
        save(answer, out, several=budgets is not None)
    if json:
        print(to_json(answer, several=budgets is not None, explain=explain or []))
        return
    Page(answer, quiet=quiet, costs=cost is not None).show(budgets is not None, explain or [], together)
    if out is not None and not quiet:
        print(f"saved to {out}")
