"""`tagalong problems`: what there is to learn."""

from __future__ import annotations

from . import _study_options as options
from ._terminal import clean, put, say, screen, table


def problems(json: options.JsonOption = False, quiet: options.QuietOption = False) -> None:
    """Lists the problems that `tagalong run` and `tagalong paper` know by name.

    Example:
        `tagalong problems --json`: what can be run by name, for a script
    """
    from tagalong.problems import known_problems

    known = known_problems()
    if json:
        from json import dumps

        listed = [
            {"name": one.name, "description": one.description, "tasks": one.tasks, "available": one.available}
            for one in known
        ]
        print(dumps({"problems": listed}, indent=1))
        return
    if quiet:
        print("\n".join(one.name for one in known))
        return
    console, shown = screen(), table("problem", "tasks", "what it is", "size", numbers=("tasks",))
    for one in known:
        needs = "" if one.available else f" (needs pip install '{one.install}')"
        shown.add_row(one.name, str(one.tasks or ""), clean(one.description) + needs, one.size)
    put(console, shown)
    say(console, "or any table: tagalong run TABLE.csv --targets A,B,C")
