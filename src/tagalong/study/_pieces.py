"""Weights of more than SQLite's gigabyte for a row: cut into pieces, which are rows of a table of their own."""

from __future__ import annotations

import sqlite3

PIECE = 2**28  # bytes
SCHEMA = "CREATE TABLE IF NOT EXISTS pieces (key TEXT, place INTEGER, content BLOB, PRIMARY KEY (key, place))"


def put(connection: sqlite3.Connection, key: str, content: bytes | None) -> bytes | int | None:
    """What the row of a network holds: its weights, or how many pieces there are; part of the caller's transaction."""
    if content is None or len(content) <= PIECE:
        return content
    connection.execute(SCHEMA)
    places = range(-(-len(content) // PIECE))
    view = memoryview(content)
    connection.executemany(
        "INSERT OR IGNORE INTO pieces VALUES (?, ?, ?)",
        ((key, place, view[place * PIECE : (place + 1) * PIECE]) for place in places),
    )
    return len(places)


def get(connection: sqlite3.Connection, key: str, held: bytes | int | None) -> bytes | None:
    """The weights of a network, from what its row holds."""
    if not isinstance(held, int):
        return held
    pieces = connection.execute("SELECT content FROM pieces WHERE key = ? ORDER BY place", (key,))
    return b"".join(content for (content,) in pieces)


def drop(connection: sqlite3.Connection) -> None:
    """Removes pieces that no row asks for any more."""
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'pieces'").fetchone():
        connection.execute("DELETE FROM pieces WHERE key NOT IN (SELECT key FROM networks WHERE weights IS NOT NULL)")
