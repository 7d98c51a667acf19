"""Compares ways of grouping the tasks of one problem: which is best, and is it worth it?"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tagalong.progress import Progress as Progress
    from tagalong.score import Score as Score

    from .best import Best as Best
    from .decisions import compare_methods as compare_methods
    from .defaults import default_methods as default_methods
    from .executors import (
        Chunk as Chunk,
        Elsewhere as Elsewhere,
        Executor as Executor,
        Pending as Pending,
        make_executor as make_executor,
    )
    from .external import ExternalStudy as ExternalStudy, has_plan as has_plan
    from .external_files import read_targets as read_targets
    from .external_rounds import TrainingPlan as TrainingPlan
    from .external_table import (
        compare_networks as compare_networks,
        read_networks as read_networks,
        verdict_from_csv as verdict_from_csv,
    )
    from .finished_run import Run as Run, read_run as read_run
    from .methods import (
        Choice as Choice,
        Decision as Decision,
        Method as Method,
        Oracle as Oracle,
        make_method as make_method,
        method_names as method_names,
        register_method as register_method,
    )
    from .noise import Interval as Interval, half_width as half_width, seed_stderr as seed_stderr
    from .records import (
        Cost as Cost,
        Label as Label,
        ProblemInfo as ProblemInfo,
        Record as Record,
        SkillScale as SkillScale,
        averaged_tasks as averaged_tasks,
    )
    from .results import Results as Results
    from .run_folder import claim_folder as claim_folder
    from .runner import (
        Runner as Runner,
        check_runner as check_runner,
        open_runner as open_runner,
        without_rows as without_rows,
    )
    from .store import Store as Store, StoreError as StoreError
    from .study import Study as Study
    from .summary import MethodSummary as MethodSummary
    from .verdict import (
        JudgedWay as JudgedWay,
        ServingCost as ServingCost,
        TaskAnswer as TaskAnswer,
        Verdict as Verdict,
    )
    from .words import (
        FAMILIES as FAMILIES,
        answer_sentences as answer_sentences,
        family_of as family_of,
        interval_text as interval_text,
        label_text as label_text,
        multiple as multiple,
        other_sentences as other_sentences,
        percent as percent,
        points as points,
    )

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
    "TrainingPlan": ".external_rounds",
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
