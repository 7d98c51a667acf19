"""From names to a bench: which problem, at which size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._bench import FEW, PROBLEMS, Bench

if TYPE_CHECKING:
    from tagalong.study import Progress

SEEDS = {"small": 2, "full": 3}
FEWEST = 2


def open_bench(
    problem: str = "faces",
    size: str = "small",
    *,
    out: Path | None = None,
    seeds: int | None = None,
    tasks: Sequence[str] | None = None,
    options: Mapping[str, Any] | None = None,
    recipe: Mapping[str, Any] | None = None,
    device: str = "auto",
    progress: Progress | None = None,
    executor: str = "serial",
) -> Bench:
    """Loads the problem and says where its networks are kept.

    Args:
        problem: "faces", "celeba" or "taskonomy".
        size: "small" for seconds, "full" for the paper's size.
        out: the folder; by default one for each problem and size below `runs`.
        seeds: how many runs; by default 2 at small and the paper's 3 at full size (Taskonomy: 1, as in the paper).
        tasks: these alone; by default five at small size, else all.
        options: of the problem, such as where its files are.
        recipe: settings of its recipe to change.
        device: as for a `Study`.
        progress: is told how far it is.
        executor: as for a `Study`.

    Raises:
        ValueError: an unknown problem or size, a problem that is not there, or a folder of another problem.
    """
    _refuse(problem, size, seeds, recipe or {})
    from dataclasses import replace

    from tagalong.problems import load_problem
    from tagalong.study._executors import device_name, make_executor
    from tagalong.study._settings import folder_problem, store_problem

    make_executor(executor)  # these three refuse what cannot be used, before minutes of drawing or decoding
    device_name(device)
    folder = out or Path("runs") / f"paper-{problem}-{size}"
    if wrong := store_problem(folder):
        raise ValueError(wrong)
    made = load_problem(problem, **{**(options or {}), "size": size, "progress": progress})
    if recipe:
        made = replace(made, recipe=replace(made.recipe, **recipe))
    names = (made if tasks is None else made.only(tasks)).names
    if len(names) < FEWEST:
        raise ValueError(f"`tasks` must be {FEWEST} at least, so that there is something to group, found {names[0]!r}")
    few = FEW if size == "small" and set(FEW) <= set(made.names) else None
    count = seeds or (1 if problem == "taskonomy" else SEEDS[size])
    bench = Bench(made, folder, few if tasks is None else tuple(tasks), range(count), size, device, progress, executor)
    if wrong := folder_problem(folder, made.fingerprint):
        raise ValueError(wrong)
    _remember(bench)
    return bench


def _refuse(problem: str, size: str, seeds: int | None, recipe: Mapping[str, Any]) -> None:
    from dataclasses import fields

    from tagalong._names import refuse
    from tagalong.learn import Recipe
    from tagalong.problems import problem_names

    problems = []
    if problem not in PROBLEMS:
        problems.append(f"`problem` must be one of {', '.join(map(repr, PROBLEMS))}, found {problem!r}")
    elif problem not in problem_names():
        problems.append(f"`problem` {problem!r} is not offered by this installation; 'faces' stands in for it")
    if size not in SEEDS:
        problems.append(f"`size` must be 'small' or 'full', found {size!r}")
    if seeds is not None and seeds < 1:
        problems.append(f"`seeds` must be a number from 1, found {seeds!r}")
    known = sorted(one.name for one in fields(Recipe))
    if unknown := [name for name in recipe if name not in known]:
        problems.append(f"`recipe` must change one of {', '.join(known)}, found {', '.join(unknown)}")
    refuse(problems)


def _remember(bench: Bench) -> None:
    """Ties the folder to the problem, as studies do."""
    from tagalong.study._key import Keys
    from tagalong.study._settings import write_settings

    bench.out.mkdir(parents=True, exist_ok=True)
    architecture = Keys(bench.problem, "cpu").architecture
    write_settings(bench.out, bench.problem, architecture, {"seeds": list(bench.seeds), "size": bench.size})
