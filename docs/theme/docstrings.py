"""Docstrings say "Example:", as Google's guide has it; the reader of docstrings knows "Examples:" alone."""

import re
from typing import Any

from griffe import Extension, Object


class OneExample(Extension):
    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
