"""The command line: thin commands over the public functions, and what commands of other packages share with them.

A package brings a command as an entry point in the group "tagalong.commands": a function, which typer turns into a
command, or a typer app, which becomes a group of commands. The first line of its docstring is what `tagalong --help`
shows, read from the source without importing anything; what stands under "Examples:" at the end of the docstring is
shown below the options. A `ValueError` ends a command with its sentence and status 2, Ctrl-C with status 130.

The options whose names end in "Option" are annotations, so that options are spelt the same everywhere:
`def roll(out: OutOption = None, json: JsonOption = False) -> None`.
"""

from ._app import main as main
from ._arguments import budgets as budgets
from ._arguments import check_folder as check_folder
from ._arguments import names as names
from ._arguments import typed_number as typed_number
from ._arguments import typed_whole as typed_whole
from ._arguments import whole_budgets as whole_budgets
from ._completion import complete_methods as complete_methods
from ._completion import complete_problems as complete_problems
from ._completion import complete_runs as complete_runs
from ._completion import one_of as one_of
from ._interrupt import Interrupt as Interrupt
from ._interrupt import goes_on as goes_on
from ._manual import Command as Command
from ._manual import Commands as Commands
from ._sentences import called as called
from ._sentences import complain as complain
from ._study_arguments import listed as listed
from ._study_arguments import of_problem as of_problem
from ._study_arguments import values as values
from ._study_options import BudgetsOption as BudgetsOption
from ._study_options import DeviceOption as DeviceOption
from ._study_options import ExecutorOption as ExecutorOption
from ._study_options import JsonOption as JsonOption
from ._study_options import MethodsOption as MethodsOption
from ._study_options import OutOption as OutOption
from ._study_options import QuietOption as QuietOption
from ._study_options import RecipeOption as RecipeOption
from ._study_options import SeedsOption as SeedsOption
from ._study_options import TasksOption as TasksOption
from ._study_options import WithOption as WithOption
from ._terminal import clean as clean
from ._terminal import progress as progress
from ._terminal import put as put
from ._terminal import say as say
from ._terminal import screen as screen
from ._terminal import table as table
from ._watch import watching as watching
