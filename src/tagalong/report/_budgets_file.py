"""Groups that took long to choose, kept beside the run for the next time its page is made."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tagalong._caution import caution
from tagalong.affinity import Affinity
from tagalong.affinity._atomic import write_atomic

if TYPE_CHECKING:
    from tagalong.group import Grouping

FILE, FORMAT, VERSION = "budgets.json", "tagalong-budgets", 1
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Solved:
    """Where groupings are kept, and of what they are the answer.

    Attributes:
        file: in the folder of a run.
        key: of the affinities, budgets and options; other ones are solved anew.
        tasks: their names.
    """

    file: Path
    key: str
    tasks: tuple[str, ...]

    @staticmethod
    def of(folder: Path, affinity: Affinity, budgets: Sequence[int], options: Mapping[str, Any]) -> Solved:
        """For these affinities, budgets and options of `select_groups`."""
        question = [
            VERSION,
            list(affinity.tasks),
            list(budgets),
            {name: str(options[name]) for name in sorted(options)},
        ]
        asked = hashlib.sha256(json.dumps(question).encode())
        asked.update(affinity.mean.astype("<f8").tobytes())
        return Solved(folder / FILE, asked.hexdigest(), tuple(affinity.tasks))

    def read(self) -> dict[int, Grouping]:
        """What is kept; nothing if it answers another question, or is damaged."""
        from tagalong.group._grouping_file import from_document

        try:
            document = json.loads(self.file.read_bytes())
            if document["key"] != self.key:
                return {}
            return {int(entry["budget"]): from_document(entry["grouping"]) for entry in document["groupings"]}
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def write(self, groupings: Mapping[int, Grouping]) -> None:
        """Keeps them, where the folder may be written."""
        from tagalong.group._grouping_file import to_document

        entries = [{"budget": k, "grouping": to_document(grouping)} for k, grouping in groupings.items()]
        document = {"format": FORMAT, "version": VERSION, "caution": caution(self.tasks), "key": self.key}
        try:
            write_atomic(self.file, (json.dumps(document | {"groupings": entries}) + "\n").encode())
        except OSError as error:
            logger.info("the groups for every budget are not kept: %s", error)
