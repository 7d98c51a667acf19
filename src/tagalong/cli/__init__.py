"""The command line: thin wrappers around the public functions, and helpers for plug-in commands.

Another package can add a command with an entry point in the "tagalong.commands" group. The entry point refers to a
function, which becomes a command, or to a typer app, which becomes a group of commands. `tagalong --help` imports it
and shows the first line of the docstring. A list after "Examples:" at the end of the docstring is shown below the
options. If a command raises `ValueError`, its message is printed and the exit status is 2. Ctrl-C exits with status
130.

Names ending in "Option" are type annotations that keep options consistent across commands, and names ending in
"Options" are groups of them. For example: `def roll(training: TrainingOptions, json: JsonOption = False) -> None`.
"""

from tagalong.rendering import TextTable as TextTable

from .app import main as main
from .options import (
    BudgetsOption as BudgetsOption,
    JsonOption as JsonOption,
    OutFolder as OutFolder,
    ProblemOptions as ProblemOptions,
    QuietOption as QuietOption,
    SeedsOption as SeedsOption,
    TrainingOptions as TrainingOptions,
    complete_methods as complete_methods,
    complete_problems as complete_problems,
    given as given,
    option as option,
    parse_names as parse_names,
)
from .terminal import (
    StudyProgress as StudyProgress,
    print_line as print_line,
    print_table as print_table,
    spinner as spinner,
)
