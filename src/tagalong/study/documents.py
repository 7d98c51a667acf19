"""The files of a run: the entries of each that are read again, and what they must be."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field, PlainValidator, model_validator

from tagalong.documents import Document
from tagalong.files import DocumentError
from tagalong.group import Group, Grouping

from .records import ProblemInfo, Record, SkillScale, check_served
from .verdict import Verdict

TRAIN_AGAIN = "run the study again, which trains only what is missing"
NETWORKS_FOLDER, NETWORKS_NAME = "networks", "networks.json"
FileName = Annotated[str, Field(pattern=r"^[^/\\\\]+$")]  # in the same folder
Count = Annotated[int, Field(ge=0)]


class ResultsFileError(DocumentError):
    """Raised if a file does not contain valid results."""


class NetworksFileError(DocumentError):
    """Raised if a folder does not contain valid networks of a run."""


class SettingsFile(Document):
    """`settings.json`: what was studied, by whom and how. Most of it is only shown."""

    class Problem(BaseModel):
        name: str
        fingerprint: str

    kind = "tagalong-run"
    hint = "choose another folder, or remove it"
    problem: Problem


class GroupingsFile(Document):
    """`groupings.json`: the groups that each method chose."""

    class Entry(BaseModel):
        method: str
        budget: int | None
        grouping: Annotated[
            Grouping | None, PlainValidator(lambda found: None if found is None else Grouping.from_document(found))
        ]

    kind = "tagalong-groupings"
    error = ResultsFileError
    hint = "run the study again"
    groupings: list[Entry]


class ResultsFile(Document):
    """`results.json`: all records and the verdict. The table in the file is not read."""

    class Settings(BaseModel, extra="allow"):
        confirming_seeds: list[Count] = []
        repeats: Count = 1

    kind = "tagalong-results"
    error = ResultsFileError
    hint = "run the study again"
    problem: ProblemInfo
    settings: Settings
    scale: SkillScale | None
    verdict: Verdict | None
    records: Annotated[list[Record], Field(min_length=1)]

    @model_validator(mode="after")
    def _check_tasks(self) -> ResultsFile:
        tasks = set(self.problem.tasks)
        for number, record in enumerate(self.records):
            if record.groups:
                check_served(record.groups, tasks)
            if not tasks == record.val.keys() == record.test.keys():
                raise ValueError(f"records[{number}] must have scores of {', '.join(self.problem.tasks)}")
        return self


class NetworksFile(Document):
    """`networks/networks.json`: the trained networks that a run recommends; their weights are in a file beside it."""

    class Entry(BaseModel):
        layers: dict[str, Any] | None
        width: float

    kind = "tagalong-networks"
    format_version = 4
    error = NetworksFileError
    hint = TRAIN_AGAIN
    seed: Count
    tasks: Annotated[list[Any], Field(min_length=1)]
    groups: tuple[Group, ...]
    weights: FileName
    networks: list[Entry]
    table: dict[str, Any] | None
