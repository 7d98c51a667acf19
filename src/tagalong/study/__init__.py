"""Compares ways of grouping the tasks of one problem: which is best, and is it worth it?"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tagalong.progress import Progress as Progress
    from tagalong.score import Score as Score

    from .best import Best as Best
    from .decisions import compare_methods as compare_methods
    from .defaults import default_methods as default_methods
    from .executors import Chunk as Chunk
    from .executors import Elsewhere as Elsewhere
    from .executors import Executor as Executor
    from .executors import Pending as Pending
    from .executors import make_executor as make_executor
    from .external import ExternalStudy as ExternalStudy
    from .external import has_plan as has_plan
    from .external_files import read_targets as read_targets
    from .external_table import compare_networks as compare_networks
    from .external_table import read_networks as read_networks
    from .external_table import verdict_from_csv as verdict_from_csv
    from .finished_run import Run as Run
    from .finished_run import read_run as read_run
    from .methods import Choice as Choice
    from .methods import Decision as Decision
    from .methods import Method as Method
    from .methods import Oracle as Oracle
    from .methods import make_method as make_method
    from .methods import method_names as method_names
    from .methods import register_method as register_method
    from .noise import Interval as Interval
    from .noise import half_width as half_width
    from .noise import seed_stderr as seed_stderr
    from .planning import TrainingPlan as TrainingPlan
    from .records import Cost as Cost
    from .records import Label as Label
    from .records import ProblemInfo as ProblemInfo
    from .records import Record as Record
    from .records import SkillScale as SkillScale
    from .records import averaged_tasks as averaged_tasks
    from .results import Results as Results
    from .run_folder import claim_folder as claim_folder
    from .runner import Runner as Runner
    from .runner import check_runner as check_runner
    from .runner import open_runner as open_runner
    from .runner import without_rows as without_rows
    from .store import Store as Store
    from .store import StoreError as StoreError
    from .study import Study as Study
    from .summary import MethodSummary as MethodSummary
    from .verdict import JudgedWay as JudgedWay
    from .verdict import ServingCost as ServingCost
    from .verdict import TaskAnswer as TaskAnswer
    from .verdict import Verdict as Verdict
    from .words import FAMILIES as FAMILIES
    from .words import answer_sentences as answer_sentences
    from .words import family_of as family_of
    from .words import interval_text as interval_text
    from .words import label_text as label_text
    from .words import multiple as multiple
    from .words import other_sentences as other_sentences
    from .words import percent as percent
    from .words import points as points

_HOMES = {
    "Interval": ".noise",
    "half_width": ".noise",
    "SkillScale": ".records",
    "ServingCost": ".verdict",
    "TaskAnswer": ".verdict",
    "JudgedWay": ".verdict",
    "FAMILIES": ".words",
    "answer_sentences": ".words",
    "family_of": ".words",
    "interval_text": ".words",
    "label_text": ".words",
    "multiple": ".words",
    "other_sentences": ".words",
    "percent": ".words",
    "points": ".words",
    "seed_stderr": ".noise",
    "Best": ".best",
    "Choice": ".methods",
    "Chunk": ".executors",
    "Cost": ".records",
    "Decision": ".methods",
    "Executor": ".executors",
    "ExternalStudy": ".external",
    "Label": ".records",
    "Method": ".methods",
    "MethodSummary": ".summary",
    "Oracle": ".methods",
    "ProblemInfo": ".records",
    "Progress": "tagalong.progress",
    "Record": ".records",
    "Results": ".results",
    "Run": ".finished_run",
    "Score": "tagalong.score",
    "Store": ".store",
    "StoreError": ".store",
    "Study": ".study",
    "Runner": ".runner",
    "TrainingPlan": ".planning",
    "Verdict": ".verdict",
    "averaged_tasks": ".records",
    "check_runner": ".runner",
    "claim_folder": ".run_folder",
    "compare_methods": ".decisions",
    "default_methods": ".defaults",
    "make_executor": ".executors",
    "make_method": ".methods",
    "method_names": ".methods",
    "open_runner": ".runner",
    "read_run": ".finished_run",
    "register_method": ".methods",
    "Elsewhere": ".executors",
    "Pending": ".executors",
    "without_rows": ".runner",
    "verdict_from_csv": ".external_table",
    "compare_networks": ".external_table",
    "has_plan": ".external",
    "read_networks": ".external_table",
    "read_targets": ".external_files",
}


def __getattr__(name: str) -> Any:
    # Modules are imported on demand, so that reading results for a report does not load torch.
    if name in _HOMES:
        return getattr(import_module(_HOMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
