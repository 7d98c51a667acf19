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
from .arguments import check_folder as check_folder
from .arguments import integer_option as integer_option
from .arguments import number_option as number_option
from .arguments import parse_budgets as parse_budgets
from .arguments import parse_names as parse_names
from .arguments import parse_options as parse_options
from .arguments import parse_problem_options as parse_problem_options
from .manual import Command as Command
from .manual import Commands as Commands
from .messages import name_arguments as name_arguments
from .messages import resumable as resumable
from .options import BudgetsOption as BudgetsOption
from .options import DeviceOption as DeviceOption
from .options import ExecutorOption as ExecutorOption
from .options import JsonOption as JsonOption
from .options import MethodsOption as MethodsOption
from .options import OutOption as OutOption
from .options import QuietOption as QuietOption
from .options import RecipeOption as RecipeOption
from .options import SeedsOption as SeedsOption
from .options import TasksOption as TasksOption
from .options import WithOption as WithOption
from .options import complete_methods as complete_methods
from .options import complete_problems as complete_problems
from .options import complete_runs as complete_runs
from .options import complete_words as complete_words
from .terminal import print_line as print_line
from .terminal import print_table as print_table
from .terminal import printable as printable
from .terminal import screen as screen
from .terminal import show_progress as show_progress
from .terminal import spinner as spinner
