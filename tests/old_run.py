"""Run folders of earlier versions of the store: 1 (commit 523576c), whose keys held the release, and 2."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

from tagalong.files import remove_checksum
from tagalong.study.store import BLOBS

SCHEMA = """
CREATE TABLE networks (
    key TEXT PRIMARY KEY, definition TEXT NOT NULL, scores TEXT NOT NULL, steps INTEGER NOT NULL,
    seconds REAL NOT NULL, parameters INTEGER NOT NULL, best_epoch INTEGER NOT NULL, batch TEXT NOT NULL,
    kept INTEGER NOT NULL DEFAULT 0, curve BLOB, weights BLOB, losses BLOB
);
CREATE TABLE affinities (
    key TEXT PRIMARY KEY, network TEXT NOT NULL, settings TEXT NOT NULL, steps INTEGER NOT NULL,
    seconds REAL NOT NULL, affinity BLOB NOT NULL
);
CREATE TABLE latencies (key TEXT PRIMARY KEY, seconds REAL NOT NULL);
PRAGMA user_version = 1;
"""
DEFINITION = {
    "tasks": ["a"],
    "seed": 0,
    "rule": "plain",
    "width": 1.0,
    "data": "0123456789abcdef",
    "losses": "0123456789abcdef",
    "architecture": "0123456789abcdef",
    "recipe": {"optimizer": "sgd", "lr": 0.1},
    "device": "cpu",
    "version": "0.1.0",
}


def old_run(folder: Path) -> Path:
    """Makes the folder, with one network in its store and one in `networks/`."""
    (folder / "networks").mkdir(parents=True)
    (folder / "networks" / "networks.json").write_text('{"format": "tagalong-networks", "version": 1, "groups": []}')
    connection = sqlite3.connect(folder / "run.sqlite")
    connection.executescript(SCHEMA)
    row = ("0" * 64, json.dumps(DEFINITION), '{"val": {"a": [1, 1]}, "test": {"a": [1, 1]}}', 6, 0.5, 11, 1, "[]")
    connection.execute(
        "INSERT INTO networks (key, definition, scores, steps, seconds, parameters, best_epoch, batch) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        row,
    )
    connection.commit()
    connection.close()
    return folder


def to_version_2(store: Path) -> None:
    """Converts a store to version 2, which had no checksums."""
    connection = sqlite3.connect(store)
    for table, blobs in BLOBS.items():
        connection.execute(f"ALTER TABLE {table} DROP COLUMN checksum")
        for blob in blobs:
            rows = connection.execute(f"SELECT rowid, {blob} FROM {table} WHERE {blob} IS NOT NULL").fetchall()
            connection.executemany(
                f"UPDATE {table} SET {blob} = ? WHERE rowid = ?",
                [(remove_checksum(content), row) for row, content in rows],
            )
    connection.execute("PRAGMA user_version = 2")
    connection.commit()
    connection.close()
