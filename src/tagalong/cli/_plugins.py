"""Commands of other packages: listed without importing them, loaded when they are used."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from inspect import cleandoc
from typing import Any

import typer

from tagalong.plugins import Plugin, PluginError, find_plugins, warn_once

from ._interrupt import interruptible
from ._manual import Command, Commands, manual, show_examples


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
