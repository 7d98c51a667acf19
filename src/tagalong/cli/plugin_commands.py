"""Commands from other packages, which are not imported until they run; their help is read from the source."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from inspect import cleandoc
from typing import Any

import typer

from tagalong.plugins import Plugin

from .manual import Command, finish_command, show_examples


class PluginCommand(Command):
    """A command from another package that is not imported until it runs; its help text is read from the source."""

    def __init__(self, plugin: Plugin) -> None:
        super().__init__(plugin.name)
        self.plugin = plugin

    def describe(self) -> None:
        """Reads the help text from the source."""
        self.help = read_docstring(self.plugin) or f"From {self.plugin.package or self.plugin.value}."
        show_examples(self)


def load_command(plugin: Plugin) -> Any:
    """Imports a command: a function, or a typer app for a group of commands.

    Raises:
        PluginError: If the import fails, or the imported object is neither a function nor a typer app.
    """
    loaded = plugin.load()
    app = typer.Typer(rich_markup_mode="markdown")
    try:
        if isinstance(loaded, typer.Typer):
            app.add_typer(loaded, name=plugin.name)
        elif callable(loaded):
            app.command(plugin.name, cls=Command)(loaded)
        else:
            raise TypeError(f"expected a function or a typer app, found {type(loaded).__name__}")
        command = typer.main.get_group(app).commands[plugin.name]
    except Exception as error:  # typer rejects parameters of unsupported types
        raise plugin.load_error(error) from error
    finish_command(command)
    return command


def read_docstring(plugin: Plugin) -> str | None:
    """Reads the docstring of a function, or of a typer app's callback, from the source without importing it.

    Returns:
        The docstring, or None if the source or its docstring is missing.
    """
    try:
        entry_point = plugin.entry_point
        source = _read_source(entry_point.module)
        found = None if source is None else _find_docstring(ast.parse(source), entry_point.attr)
    except Exception:  # a broken plug-in is listed without help; running it shows the error
        return None
    return None if found is None else cleandoc(found)


def _read_source(module: str) -> str | None:
    """Returns the source of a module. Unlike `importlib.util.find_spec`, this does not import the parent packages."""
    parts, path, spec = module.split("."), None, None
    for end in range(1, len(parts) + 1):
        name = ".".join(parts[:end])
        spec = next(filter(None, (finder.find_spec(name, path) for finder in sys.meta_path)), None)
        if spec is None:
            return None
        path = spec.submodule_search_locations
    source: str | None = getattr(getattr(spec, "loader", None), "get_source", lambda name: None)(module)
    return source


def _find_docstring(tree: ast.Module, attribute: str) -> str | None:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and (
            node.name == attribute or any(_is_callback(decorator, attribute) for decorator in node.decorator_list)
        ):
            return ast.get_docstring(node)
        if (
            isinstance(node, ast.Assign)
            and _target_names(node.targets) == [attribute]
            and isinstance(node.value, ast.Call)
        ):
            for given in node.value.keywords:
                if given.arg == "help" and isinstance(given.value, ast.Constant):
                    return str(given.value.value)
    return None


def _is_callback(decorator: ast.expr, app: str) -> bool:
    return ast.unparse(decorator).startswith(f"{app}.callback(")


def _target_names(targets: Sequence[ast.expr]) -> list[str]:
    return [target.id for target in targets if isinstance(target, ast.Name)]
