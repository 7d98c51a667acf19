"""The command line: thin commands over the public functions, and what commands of other packages share with them.

A package brings a command as an entry point in the group "tagalong.commands": a function, which typer turns into a
command, or a typer app, which becomes a group of commands. The first line of its docstring is what `tagalong --help`
shows, read from the source without importing anything; what stands under "Examples:" at the end of the docstring is
shown below the options. A `ValueError` ends a command with its sentence and status 2, Ctrl-C with status 130.

The options whose names end in "Option" are annotations, so that options are spelt the same everywhere:
`def roll(out: OutOption = None, json: JsonOption = False) -> None`.
"""

from .app import Command as Command
from .app import Commands as Commands
from .app import main as main
from .arguments import budgets as budgets
from .arguments import check_folder as check_folder
from .arguments import listed as listed
from .arguments import names as names
from .arguments import of_problem as of_problem
from .arguments import typed_number as typed_number
from .arguments import typed_whole as typed_whole
from .arguments import values as values
from .arguments import whole_budgets as whole_budgets
from .messages import Interrupt as Interrupt
from .messages import called as called
from .messages import complain as complain
from .messages import goes_on as goes_on
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
from .options import one_of as one_of
from .terminal import clean as clean
from .terminal import progress as progress
from .terminal import put as put
from .terminal import say as say
from .terminal import screen as screen
from .terminal import table as table
from .terminal import watching as watching
