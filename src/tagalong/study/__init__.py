"""Which way of grouping is best here, and is any worth it?"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tagalong.progress import Progress as Progress

    from .backend import Lab as Lab
    from .best import Best as Best
    from .best import keep_best as keep_best
    from .decisions import decide_all as decide_all
    from .decisions import records_of as records_of
    from .executors import Chunk as Chunk
    from .executors import Executor as Executor
    from .executors import device_name as device_name
    from .executors import make_executor as make_executor
    from .executors import train_chunk as train_chunk
    from .external import External as External
    from .external import verdict_from_csv as verdict_from_csv
    from .finished_run import Compared as Compared
    from .finished_run import Run as Run
    from .finished_run import all_budgets as all_budgets
    from .finished_run import compare_runs as compare_runs
    from .finished_run import read_run as read_run
    from .finished_run import shown_budget as shown_budget
    from .keys import Keys as Keys
    from .methods.hoa_optimal import Oracle as Oracle
    from .methods.method import Choice as Choice
    from .methods.method import Decision as Decision
    from .methods.method import Method as Method
    from .methods.mtl_stl import Combined as Combined
    from .methods.random_groups import Random as Random
    from .methods.registry import make_method as make_method
    from .methods.registry import method_names as method_names
    from .methods.registry import register_method as register_method
    from .methods.tag_cs import Tag as Tag
    from .network_rows import Packed as Packed
    from .planning import Plan as Plan
    from .planning import plan as plan
    from .planning import read_lines as read_lines
    from .records import Cost as Cost
    from .records import Outcome as Outcome
    from .records import ProblemInfo as ProblemInfo
    from .records import Record as Record
    from .records import relative as relative
    from .request import check as check
    from .results import Results as Results
    from .run_folder import folder_problem as folder_problem
    from .run_folder import log_to as log_to
    from .run_folder import store_problem as store_problem
    from .run_folder import write_settings as write_settings
    from .search.oracle import Seen as Seen
    from .search.oracle import Trial as Trial
    from .store import Store as Store
    from .store import StoreError as StoreError
    from .study import Study as Study
    from .summary import Line as Line
    from .summary import summarise as summarise
    from .text import DIVERGED as DIVERGED
    from .text import Lesson as Lesson
    from .text import curve as curve
    from .text import effort_sentence as effort_sentence
    from .text import label_text as label_text
    from .text import lessons as lessons
    from .text import percent as percent
    from .text import results_text as results_text
    from .text import trainings as trainings
    from .text import verdict_sentence as verdict_sentence
    from .text import verdict_text as verdict_text
    from .uncertainty import CONFIDENCE as CONFIDENCE
    from .uncertainty import TOGETHER as TOGETHER
    from .uncertainty import Label as Label
    from .uncertainty import by_label as by_label
    from .uncertainty import changes as changes
    from .uncertainty import half_width as half_width
    from .uncertainty import mean as mean
    from .uncertainty import row_stderr as row_stderr
    from .uncertainty import seed_half_width as seed_half_width
    from .uncertainty import stderr as stderr
    from .verdict import Verdict as Verdict

_HOMES = {
    "Best": ".best",
    "CONFIDENCE": ".uncertainty",
    "Choice": ".methods.method",
    "Chunk": ".executors",
    "Combined": ".methods.mtl_stl",
    "Compared": ".finished_run",
    "Cost": ".records",
    "DIVERGED": ".text",
    "Decision": ".methods.method",
    "Executor": ".executors",
    "External": ".external",
    "Keys": ".keys",
    "Lab": ".backend",
    "Label": ".uncertainty",
    "Lesson": ".text",
    "Line": ".summary",
    "Method": ".methods.method",
    "Oracle": ".methods.hoa_optimal",
    "Outcome": ".records",
    "Packed": ".network_rows",
    "Plan": ".planning",
    "ProblemInfo": ".records",
    "Progress": "tagalong.progress",
    "Random": ".methods.random_groups",
    "Record": ".records",
    "Results": ".results",
    "Run": ".finished_run",
    "Seen": ".search.oracle",
    "Store": ".store",
    "StoreError": ".store",
    "Study": ".study",
    "TOGETHER": ".uncertainty",
    "Tag": ".methods.tag_cs",
    "Trial": ".search.oracle",
    "Verdict": ".verdict",
    "all_budgets": ".finished_run",
    "by_label": ".uncertainty",
    "changes": ".uncertainty",
    "check": ".request",
    "compare_runs": ".finished_run",
    "curve": ".text",
    "decide_all": ".decisions",
    "device_name": ".executors",
    "effort_sentence": ".text",
    "folder_problem": ".run_folder",
    "half_width": ".uncertainty",
    "keep_best": ".best",
    "label_text": ".text",
    "lessons": ".text",
    "log_to": ".run_folder",
    "make_executor": ".executors",
    "make_method": ".methods.registry",
    "mean": ".uncertainty",
    "method_names": ".methods.registry",
    "percent": ".text",
    "plan": ".planning",
    "read_lines": ".planning",
    "read_run": ".finished_run",
    "records_of": ".decisions",
    "register_method": ".methods.registry",
    "relative": ".records",
    "results_text": ".text",
    "row_stderr": ".uncertainty",
    "seed_half_width": ".uncertainty",
    "shown_budget": ".finished_run",
    "stderr": ".uncertainty",
    "store_problem": ".run_folder",
    "summarise": ".summary",
    "train_chunk": ".executors",
    "trainings": ".text",
    "verdict_from_csv": ".external",
    "verdict_sentence": ".text",
    "verdict_text": ".text",
    "write_settings": ".run_folder",
}


def __getattr__(name: str) -> Any:
    # On demand: whoever only reads results, such as a report, need not wait for torch.
    if name in _HOMES:
        return getattr(import_module(_HOMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
