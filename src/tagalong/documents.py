"""JSON documents that a person may have edited: pydantic checks them, and one sentence names the wrong entry."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, TypeAdapter, ValidationError

from .errors import InvalidInput
from .files import DocumentError, read_document, write_document

T = TypeVar("T")
D = TypeVar("D", bound="Document")
NumberOrNull = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]  # null is NaN


@cache  # since building one takes milliseconds
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def build(kind: type[T], content: Any, place: str = "") -> T:
    """Builds an object from parsed JSON, by the types of its fields.

    Args:
        kind: a dataclass, a pydantic model or another type.
        content: the parsed JSON.
        place: where the content is in its document, for messages.

    Raises:
        ValueError: If an entry is missing or has the wrong type. The message names the first such entry.

    Example:
        >>> from tagalong.group import Group
        >>> build(tuple[Group, ...], [{"trains": ["age"], "serves": "age"}], "groups")
        Traceback (most recent call last):
        ValueError: groups[0].serves must be a valid array, found 'age'
    """
    try:
        adapter: TypeAdapter[T] = _adapter(kind)  # type: ignore[arg-type] # types are hashable
        built = adapter.validate_json(json.dumps(content, allow_nan=False), strict=True)
    except ValidationError as error:
        raise ValueError(_first_sentence(error, place)) from None
    return built


def _first_sentence(error: ValidationError, place: str) -> str:
    first = error.errors(include_url=False)[0]
    for step in first["loc"]:
        if isinstance(step, int):
            place += f"[{step}]"
        elif step.isidentifier():
            place += f".{step}" if place else step
        else:
            place += f"[{step!r}]"
    if first["type"] == "missing":
        return f"{place} is missing"
    if first["type"] == "extra_forbidden":
        return f"{place} is unknown"
    message = first["msg"].removeprefix("Value error, ").replace("Input should", "must")
    if first["type"] == "value_error":  # of a class's own check, which says what was found
        return f"{place}: {message}" if place else message
    found = repr(first["input"])
    return f"{place or 'the document'} {message}, found {found if len(found) < 100 else found[:100] + ' …'}"


class Document(BaseModel):
    """A JSON file with a format and a version. A subclass declares the entries that are read.

    Attributes:
        kind: the format.
        format_version: the version of the format.
        error: the class of the error for a damaged file.
        hint: what to do with one.
    """

    model_config = ConfigDict(frozen=True)
    kind: ClassVar[str]
    format_version: ClassVar[int] = 1
    error: ClassVar[type[InvalidInput]] = DocumentError
    hint: ClassVar[str] = "recreate it"

    @classmethod
    def read(cls: type[D], path: Path) -> D:
        """Reads and checks a file; an error names the file and the entry."""

        def parse(content: dict[str, Any]) -> D:
            return build(cls, content)

        return read_document(path, cls.kind, cls.format_version, parse, cls.error, cls.hint)

    @classmethod
    def write(cls, path: Path, content: Mapping[str, Any]) -> None:
        """Writes a file atomically, as `files.json_safe` converts its content."""
        write_document(path, cls.kind, cls.format_version, content)
