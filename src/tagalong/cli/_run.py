"""`tagalong run`: the whole comparison on a problem or a table."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _study_arguments as arguments
from . import _study_options as options
from ._arguments import check_folder, names, whole_budgets
from ._interrupt import goes_on
from ._sentences import called

if TYPE_CHECKING:
    from tagalong.learn import Problem

METHODS = ("mtl", "stl", "tag", "auto")
TYPED = {"options": "--set", "recipe.lr": "--recipe lr", "workers": "workers of --executor"}
LOADED = {"split": "the split", "task": "--tasks", "seed": "--with seed"}


def run(
    what: options.What,
    targets: options.TargetsOption = None,
    features: options.FeaturesOption = None,
    ignore: options.IgnoreOption = None,
    categorical: options.CategoricalOption = None,
    kinds: options.KindsOption = None,
    errors: options.ErrorsOption = None,
    split_column: options.SplitOption = None,
    group_column: options.GroupOption = None,
    features_file: options.FeaturesFileOption = None,
    tasks: options.TasksOption = None,
    size: options.SizeOption = None,
    with_: options.WithOption = None,
    methods: options.MethodsOption = None,
    budgets: options.BudgetsOption = None,
    seeds: options.SeedsOption = None,
    effort: options.EffortOption = None,
    set_: options.SetOption = None,
    price_per_hour: options.PriceOption = None,
    confirm: options.ConfirmOption = 0,
    recipe: options.RecipeOption = None,
    executor: options.ExecutorOption = None,
    device: options.DeviceOption = None,
    out: options.OutOption = None,
    json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Trains the tasks together, alone and in groups, compares, and says whether grouping is worth it.

    PROBLEM is one of `tagalong problems`; TABLE.csv is any table with a header, of which `--targets` are learnt.

    Everything is kept in `--out`: stopped at any moment and started again, it goes on where it was, and further
    methods, budgets or seeds use what is there.

    Examples:
        `tagalong run nhanes --methods mtl,tag,hoa --budgets 2-4`: a problem by its name
        `tagalong run table.csv --targets age,ill,weight --ignore id`: a table of your own
    """
    table = {
        "targets": arguments.listed(targets),
        "features": arguments.listed(features),
        "ignore": arguments.listed(ignore),
        "categorical": arguments.listed(categorical),
        "kinds": arguments.pairs(kinds, "kinds"),
        "errors": arguments.pairs(errors, "errors"),
        "split_column": split_column,
        "group_column": group_column,
        "features_file": features_file,
    }
    from ._watch import watching

    check_folder(out)  # before minutes of drawing or decoding
    chosen = {"size": size, **arguments.of_problem(with_ or [], "recipe")}
    with called(path=what, name="PROBLEM", **LOADED), watching(json or quiet) as progress:
        problem = arguments.load(what, table, chosen, progress)
        if tasks is not None:
            problem = problem.only(arguments.listed(tasks) or [])
    compare(
        arguments.with_recipe(problem, recipe or []),
        out or Path("runs") / problem.name,
        methods=METHODS if methods is None else names(methods),
        budgets=None if budgets is None else whole_budgets(budgets, len(problem.tasks)),
        seeds=3 if seeds is None else seeds,
        effort=effort,
        settings=arguments.settings(set_ or []),
        price_per_hour=price_per_hour,
        confirm=confirm,
        executor=executor or "serial",
        device=device or "auto",
        json=json,
        quiet=quiet,
    )


def compare(
    problem: Problem,
    out: Path,
    *,
    executor: str = "serial",
    device: str = "auto",
    settings: dict[str, dict[str, Any]] | None = None,
    json: bool = False,
    quiet: bool = False,
    **wanted: Any,
) -> None:
    """Runs a study and shows what came out."""
    from tagalong.study import Study

    from ._study_page import show_labels, show_results
    from ._watch import watching

    silent = json or quiet
    wanted |= {"options": settings or None}
    with called(**TYPED):
        Study(problem, out, executor=executor, device=device).check(**wanted)
    if not silent:
        show_labels(problem)
    try:
        with called(**TYPED), watching(silent) as progress:
            results = Study(problem, out, executor=executor, device=device, progress=progress).run(**wanted)
    except KeyboardInterrupt:
        raise goes_on(out) from None
    if json:
        print(json_module.dumps(results.to_document(), indent=1, allow_nan=False))
        return
    show_results(results, quiet, out)
