"""Extensions of griffe, which reads the docstrings: sections named "Example:", and constants like `A, B = 1, 2`."""

import ast
import re
from itertools import zip_longest
from typing import Any

from griffe import Attribute, Extension, Module, Object


class OneExample(Extension):
    """Renames sections "Example:", which griffe does not know, to "Examples:"."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)


class SeveralConstants(Extension):
    """Finds constants that are assigned several at a time, some of which packages export; griffe misses them."""

    def on_module_members(self, *, node: Any, mod: Module, **_: Any) -> None:
        for statement in getattr(node, "body", ()):
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Tuple):
                targets, values = statement.targets[0].elts, getattr(statement.value, "elts", ())
                for target, value in zip_longest(targets, values[: len(targets)]):
                    if isinstance(target, ast.Name):
                        mod.set_member(target.id, Attribute(target.id, value=value and ast.unparse(value)))
