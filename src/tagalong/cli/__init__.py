"""The command line: thin wrappers around the public functions, and helpers for plug-in commands.

Another package can add a command with an entry point in the "tagalong.commands" group. The entry point refers to a
function, which becomes a command, or to a typer app, which becomes a group of commands. `tagalong --help` imports it
and shows the first line of the docstring. "Examples:" at the end of the docstring are shown below the options. If a
command raises `ValueError`, its message is printed and the exit status is 2. Ctrl-C exits with status 130.

Names ending in "Option" are type annotations that keep options consistent across commands. For example:
`def roll(out: OutOption = None, json: JsonOption = False) -> None`.
"""

from tagalong.rendering import TextTable as TextTable

from .app import main as main
from .arguments import (
    check_folder as check_folder,
    integer_option as integer_option,
    number_option as number_option,
    parse_budgets as parse_budgets,
    parse_names as parse_names,
    parse_options as parse_options,
    parse_problem_options as parse_problem_options,
)
from .manual import Command as Command, Commands as Commands
from .messages import name_arguments as name_arguments, resumable as resumable
from .options import (
    BudgetsOption as BudgetsOption,
    DeviceOption as DeviceOption,
    ExecutorOption as ExecutorOption,
    JsonOption as JsonOption,
    MethodsOption as MethodsOption,
    OutOption as OutOption,
    QuietOption as QuietOption,
    RecipeOption as RecipeOption,
    SeedsOption as SeedsOption,
    TasksOption as TasksOption,
    WithOption as WithOption,
    complete_methods as complete_methods,
    complete_problems as complete_problems,
    complete_runs as complete_runs,
    complete_words as complete_words,
)
from .terminal import (
    print_line as print_line,
    print_table as print_table,
    printable as printable,
    screen as screen,
    show_progress as show_progress,
    spinner as spinner,
)
