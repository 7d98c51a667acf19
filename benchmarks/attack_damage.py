"""Damages files: flipped bytes, truncations, duplications and edited JSON, drawn from a random generator."""

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

Damage = Callable[[bytes, random.Random], bytes]
STRANGE_VALUES: tuple[Any, ...] = (
    *(None, [], {}, True, "oops", "", [[]], {"a": {}}, [None], -1, 0, 0.5, 10**6, 1e308, -1e308, 10**400),
    *("\x1b[31mred", "../../etc/passwd", "a" * 10_000),
)


def flip_byte(content: bytes, rng: random.Random) -> bytes:
    return _flip(content, rng, 1)


def flip_bytes(content: bytes, rng: random.Random) -> bytes:
    return _flip(content, rng, 16)


def _flip(content: bytes, rng: random.Random, count: int) -> bytes:
    damaged = bytearray(content)
    for _ in range(count if content else 0):
        damaged[rng.randrange(len(damaged))] ^= rng.randrange(1, 256)
    return bytes(damaged)


def truncate(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content))] if content else b""


def empty(content: bytes, rng: random.Random) -> bytes:
    return b""


def duplicate(content: bytes, rng: random.Random) -> bytes:
    return content + content


def duplicate_part(content: bytes, rng: random.Random) -> bytes:
    start, end = sorted(rng.choices(range(len(content) + 1), k=2))
    return content[:end] + content[start:]


def edit_json(content: bytes, rng: random.Random) -> bytes:
    """Replaces or deletes one value of a JSON document."""
    document = json.loads(content)
    parent, name = rng.choice(list(_places(document)))
    if rng.random() < 0.25:
        del parent[name]
    else:
        parent[name] = rng.choice(STRANGE_VALUES)
    return json.dumps(document, indent=1).encode()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yields the container and the key or index of every value in a document."""
    for name, part in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, name
        if isinstance(part, (dict, list)):
            yield from _places(part)


BYTE_DAMAGES: tuple[Damage, ...] = (flip_byte, flip_bytes, truncate, empty, duplicate, duplicate_part)


def damages_for(name: str) -> tuple[Damage, ...]:
    """Returns the damages for a file of this name; every other one for a JSON file is an edit."""
    is_json = name.endswith(".json")
    return tuple(kind for damage in BYTE_DAMAGES for kind in ((damage, edit_json) if is_json else (damage,)))
