"""The `tagalong` command: its commands, and what `--help` says."""

from __future__ import annotations

import ast
import logging
import os
import re
import sys
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor
from inspect import cleandoc
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from tagalong._version import __version__
from tagalong.plugins import Plugin, PluginError, find_plugins, warn_once

from .group import group
from .messages import STATUS, complain, interruptible, sentence, usage
from .plan import plan, verdict
from .predict import predict
from .report import report
from .run import demo, problems, run

PURPOSE = """Which tasks should train together?

Measures who helps whom in one training run, chooses the networks to train for a budget, trains and compares them with
the alternatives, and says whether grouping is worth it.
"""

FILES = (
    ("report.html", "the page: one file that fetches nothing and can be mailed"),
    ("results.json", "every result, the table and the verdict"),
    ("affinity.json, groupings.json", "who helps whom, and the groups of each method and budget"),
    ("networks/", "the recommended networks, for `tagalong predict`"),
    ("settings.json, run.log", "what was asked, versions, seeds, and what happened when"),
    ("run.sqlite, partial/", "trained networks: the same command goes on from there"),
)
EXIT_STATUS = (
    ("0", "all went well"),
    ("1", "a worker process died, or nobody reads what is printed"),
    ("2", "wrong input, said in a sentence before anything is trained"),
    ("130", "stopped by Ctrl-C; what is finished is kept, and the same command goes on"),
)
ENVIRONMENT = (
    ("COLUMNS", "how wide tables may be, instead of the width of the terminal"),
    ("NO_COLOR", "if set, nothing is coloured; files and pipes never are"),
)


Examples = Sequence[tuple[str, str]]
EXAMPLES = re.compile(r"\n+Examples?:\n((?: +`[^`\n]+`: .+(?:\n|$))+)\s*$")
EXAMPLE = re.compile(r" +`([^`\n]+)`: (.+)")


def split_examples(text: str) -> tuple[str, Examples]:
    """The help of a command, and the examples that stand at its end: a command line and what it does.

    Example:
        >>> split_examples("Rolls a die.\\n\\nExample:\\n    `tagalong roll 6`: as usual\\n")
        ('Rolls a die.', [('tagalong roll 6', 'as usual')])
    """
    found = EXAMPLES.search(text)
    if found is None:
        return text, []
    return text[: found.start()], EXAMPLE.findall(found[1])


def show_examples(command: Any) -> None:
    """Moves the examples of a command's help below its options, and keeps them in `command.examples`."""
    command.help, command.examples = split_examples(cleandoc(command.help or ""))
    if command.examples and not command.epilog:
        command.epilog = _section("Examples" if len(command.examples) > 1 else "Example", command.examples)


def manual(examples: Examples) -> str:
    """Below the list of commands: one example of each, the files of a run, exit codes, environment."""
    sections = (
        _section("Examples", examples),
        _section("Files of a run (`--out`, by default `runs/` and its name)", FILES),
        _section("Exit status", EXIT_STATUS),
        _section("Environment", ENVIRONMENT),
        "`tagalong COMMAND --help` tells more; `tagalong --install-completion` teaches your shell.",
    )
    return "\n\n".join(sections)


def _section(title: str, lines: Examples) -> str:
    return f"**{title}**\n\n" + "\n".join(f"- `{word}`: {said}" for word, said in lines)


class Command(TyperCommand):
    """A command whose help shows flags without the type that they do not take."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Options and arguments."""
        return _plain(super().get_params(ctx))


class Commands(TyperGroup):
    """Several of them, likewise."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Options and arguments."""
        return _plain(super().get_params(ctx))


def _plain(parameters: Sequence[Any]) -> list[Any]:
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return list(parameters)


class Root(Commands):
    """`tagalong` itself: its own commands, then those of other packages."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for command in self.commands.values():
            _finish(command)
        self._own = tuple(self.commands)
        self._all_found = False

    def list_commands(self, ctx: Any) -> list[str]:
        """All names, with what the listing shows of each."""
        self._find_others()
        for command in self.commands.values():
            if isinstance(command, Listed) and command.help is None:
                command.describe()
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of this name; one of another package as the listing shows it."""
        self._find_others()
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command to run, which is loaded now."""
        name, command, rest = super().resolve_command(ctx, args)
        if isinstance(command, Listed):
            try:
                command = load_command(command.plugin)
            except PluginError:
                if not ctx.resilient_parsing:  # at a Tab there is nothing to offer, and nobody to tell
                    raise
        return name, command, rest

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The help, with an example of each command."""
        commands: list[Any] = [self.get_command(ctx, name) for name in self.list_commands(ctx)]
        self.epilog = manual([example for command in commands for example in command.examples[:1]])
        super().format_help(ctx, formatter)

    def _find_others(self) -> None:
        if self._all_found:
            return
        self._all_found = True
        for name, plugin in find_plugins("commands", self._own).items():
            try:
                self.commands[name] = Listed(plugin) if plugin.registered is None else load_command(plugin)
            except PluginError as error:  # noqa: PERF203 - a broken one must not hide the others
                warn_once(str(error))


class Listed(Command):
    """A command of another package as the listing shows it, from its source."""

    def __init__(self, plugin: Plugin) -> None:
        super().__init__(plugin.name)
        self.plugin = plugin

    def describe(self) -> None:
        """Reads what it does."""
        self.help = read_docstring(self.plugin) or f"From {self.plugin.package or self.plugin.value}."
        show_examples(self)


def load_command(plugin: Plugin) -> Any:
    """Imports a command: a function, or a typer app for a group of commands.

    Raises:
        PluginError: its import fails, or it is neither.
    """
    made = plugin.load()
    app = typer.Typer(rich_markup_mode="markdown")
    try:
        if isinstance(made, typer.Typer):
            app.add_typer(made, name=plugin.name)
        elif callable(made):
            app.command(plugin.name, cls=Command)(made)
        else:
            raise TypeError(f"it must be a function or a typer app, found {type(made).__name__}")
        command = typer.main.get_group(app).commands[plugin.name]
    except Exception as error:  # typer refuses parameters that it has no type for
        raise plugin.broken(error) from error
    _finish(command)
    return command


def _finish(command: Any) -> None:
    """Gives a command and those below it what all of ours have: examples below the options, a sentence at Ctrl-C."""
    for part in getattr(command, "commands", {}).values():
        _finish(part)
    if command.callback is not None:
        command.callback = interruptible(command.callback)
    show_examples(command)


def read_docstring(plugin: Plugin) -> str | None:
    """The docstring of a function, or of a typer app's callback, as its source has it; nothing is imported.

    Returns:
        None where there is no source, or no docstring in it.
    """
    try:
        where = plugin.entry_point
        source = _source(where.module)
        found = None if source is None else _docstring(ast.parse(source), where.attr)
    except Exception:  # broken ones are shown without; why is said when they are used
        return None
    return None if found is None else cleandoc(found)


def _source(module: str) -> str | None:
    """The source of a module. Unlike `importlib.util.find_spec`, this does not import the packages it is in."""
    parts, path, spec = module.split("."), None, None
    for end in range(1, len(parts) + 1):
        name = ".".join(parts[:end])
        spec = next(filter(None, (finder.find_spec(name, path) for finder in sys.meta_path)), None)
        if spec is None:
            return None
        path = spec.submodule_search_locations
    source: str | None = getattr(getattr(spec, "loader", None), "get_source", lambda name: None)(module)
    return source


def _docstring(tree: ast.Module, attribute: str) -> str | None:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and (
            node.name == attribute or any(_is_callback(decorator, attribute) for decorator in node.decorator_list)
        ):
            return ast.get_docstring(node)
        if isinstance(node, ast.Assign) and _names(node.targets) == [attribute] and isinstance(node.value, ast.Call):
            for given in node.value.keywords:
                if given.arg == "help" and isinstance(given.value, ast.Constant):
                    return str(given.value.value)
    return None


def _is_callback(decorator: ast.expr, app: str) -> bool:
    return ast.unparse(decorator).startswith(f"{app}.callback(")


def _names(targets: Sequence[ast.expr]) -> list[str]:
    return [target.id for target in targets if isinstance(target, ast.Name)]


COMPLETING = "_TAGALONG_COMPLETE"

app = typer.Typer(
    name="tagalong",
    cls=Root,
    help=PURPOSE,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tagalong {__version__}")
        raise typer.Exit


@app.callback()
def _tagalong(
    version: Annotated[
        bool,
        typer.Option("--version", metavar="", help="Print the version and leave.", callback=_version, is_eager=True),
    ] = False,
) -> None:
    pass


# In the order of use: look, run, see, predict; then the parts one by one.
for _command in (demo, problems, run, report, predict, group, plan, verdict):
    app.command(cls=Command)(_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line.

    Args:
        arguments: what follows the name of the program; taken from `sys.argv` by default.

    Returns:
        The exit status: 0, 1 if a worker died or nobody reads, 2 for wrong input, 130 if interrupted.

    Example:
        >>> main(["--version"]) == 0
        tagalong ...
        True
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if COMPLETING in os.environ:
        logging.disable()  # the shell would write warnings into the line that is being typed
    try:
        status = typer.main.get_command(app).main(given or ["--help"], prog_name="tagalong", standalone_mode=False)
        return status if isinstance(status, int) else 0
    except (ValueError, TimeoutError) as error:
        complain(sentence(error))
    except ImportError as error:
        if "pip install" not in str(error):
            raise
        complain(sentence(error))
    except BrokenExecutor as error:  # a worker was killed, or has no room: nothing that the user typed
        complain(sentence(error))
        return 1
    except MemoryError as error:
        complain(f"not enough memory: {error or 'ask for less at once'}")
    except KeyboardInterrupt:
        return STATUS
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the interpreter complains at its end
        return 1
    except OSError as error:
        complain(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except Exception as error:
        if not hasattr(error, "format_message"):  # typer's errors of usage have no base class in all its releases
            raise
        command = getattr(getattr(error, "ctx", None), "command_path", "tagalong")
        complain(f"{usage(error.format_message())} (see `{command} --help`)")
    return 2
