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
    from .learning import LateNetworks as LateNetworks
    from .learning import Learning as Learning
    from .methods import Choice as Choice
    from .methods import Decision as Decision
    from .methods import Method as Method
    from .methods import Oracle as Oracle
    from .methods import make_method as make_method
    from .methods import method_names as method_names
    from .methods import register_method as register_method
    from .planning import TrainingPlan as TrainingPlan
    from .records import Cost as Cost
    from .records import Label as Label
    from .records import ProblemInfo as ProblemInfo
    from .records import Record as Record
    from .records import averaged_tasks as averaged_tasks
    from .results import Results as Results
    from .run_folder import claim_folder as claim_folder
    from .runner import Runner as Runner
    from .runner import check_runner as check_runner
    from .runner import open_runner as open_runner
    from .runner import without_rows as without_rows
    from .search_log import LoggedTraining as LoggedTraining
    from .search_log import SearchLog as SearchLog
    from .store import Store as Store
    from .store import StoreError as StoreError
    from .study import Study as Study
    from .summary import MethodSummary as MethodSummary
    from .summary import TaskChange as TaskChange
    from .text import label_text as label_text
    from .text import percent as percent
    from .uncertainty import RowNoise as RowNoise
    from .uncertainty import interval_half_width as interval_half_width
    from .uncertainty import row_stderr as row_stderr
    from .verdict import BudgetResult as BudgetResult
    from .verdict import Change as Change
    from .verdict import Verdict as Verdict
    from .verdict_text import Answer as Answer
    from .verdict_text import kind_of_networks as kind_of_networks

_HOMES = {
    "Answer": ".verdict_text",
    "Best": ".best",
    "BudgetResult": ".verdict",
    "Change": ".verdict",
    "Choice": ".methods",
    "Chunk": ".executors",
    "Cost": ".records",
    "Decision": ".methods",
    "Executor": ".executors",
    "ExternalStudy": ".external",
    "Label": ".records",
    "LateNetworks": ".learning",
    "Learning": ".learning",
    "LoggedTraining": ".search_log",
    "Method": ".methods",
    "MethodSummary": ".summary",
    "Oracle": ".methods",
    "ProblemInfo": ".records",
    "Progress": "tagalong.progress",
    "Record": ".records",
    "Results": ".results",
    "RowNoise": ".uncertainty",
    "Run": ".finished_run",
    "Score": "tagalong.score",
    "SearchLog": ".search_log",
    "Store": ".store",
    "StoreError": ".store",
    "Study": ".study",
    "TaskChange": ".summary",
    "Runner": ".runner",
    "TrainingPlan": ".planning",
    "Verdict": ".verdict",
    "averaged_tasks": ".records",
    "check_runner": ".runner",
    "claim_folder": ".run_folder",
    "compare_methods": ".decisions",
    "default_methods": ".defaults",
    "interval_half_width": ".uncertainty",
    "kind_of_networks": ".verdict_text",
    "label_text": ".text",
    "make_executor": ".executors",
    "make_method": ".methods",
    "method_names": ".methods",
    "percent": ".text",
    "open_runner": ".runner",
    "read_run": ".finished_run",
    "register_method": ".methods",
    "row_stderr": ".uncertainty",
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
