"""YAML with care: names stay names, and a key given twice is refused rather than lost."""

from __future__ import annotations

from typing import Any

import yaml


def read_yaml(text: str, as_text: bool = False) -> Any:
    """The document in a text; with `as_text` every value is a string, so that a task may be called `no` or `1`.

    Raises:
        ValueError: the text is not YAML, or a mapping holds a key twice.

    Example:
        >>> read_yaml("first: [age, no]", as_text=True)
        {'first': ['age', 'no']}
    """
    try:
        return yaml.load(text, _Texts if as_text else _Values)
    except yaml.YAMLError as error:
        raise ValueError(_sentence(error)) from error
    except RecursionError:
        raise ValueError("too deeply nested") from None


def write_yaml(document: Any) -> str:
    """The document with short lists on one line, keys in their order."""
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, default_flow_style=None, width=110)


def _sentence(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"{problem} in line {mark.line + 1}" if mark is not None else str(problem)


class _Distinct:
    """Refuses mappings that hold a key twice; YAML's own loaders keep the last one."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is given twice", key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)  # type: ignore[misc]


class _Values(_Distinct, yaml.SafeLoader):
    pass


class _Texts(_Distinct, yaml.BaseLoader):
    pass
