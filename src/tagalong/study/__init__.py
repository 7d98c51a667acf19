"""Compares ways of grouping the tasks of one problem: which is best, and is it worth it?"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tagalong.progress import Progress as Progress
from tagalong.score import Score as Score

from .finished_run import Run as Run, read_run as read_run
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

if TYPE_CHECKING:
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
    from .methods import (
        Choice as Choice,
        Decision as Decision,
        Method as Method,
        Oracle as Oracle,
        make_method as make_method,
        method_names as method_names,
        register_method as register_method,
    )
    from .run_folder import claim_folder as claim_folder
    from .runner import (
        Runner as Runner,
        check_runner as check_runner,
        open_runner as open_runner,
        without_rows as without_rows,
    )
    from .store import Store as Store, StoreError as StoreError
    from .study import Study as Study

# Imported on demand, so that reading results for a report does not load torch.
_HOMES = {
    "Best": ".best",
    "Choice": ".methods",
    "Chunk": ".executors",
    "Decision": ".methods",
    "Elsewhere": ".executors",
    "Executor": ".executors",
    "ExternalStudy": ".external",
    "Method": ".methods",
    "Oracle": ".methods",
    "Pending": ".executors",
    "Runner": ".runner",
    "Store": ".store",
    "StoreError": ".store",
    "Study": ".study",
    "TrainingPlan": ".external_rounds",
    "check_runner": ".runner",
    "claim_folder": ".run_folder",
    "compare_methods": ".decisions",
    "compare_networks": ".external_table",
    "default_methods": ".defaults",
    "has_plan": ".external",
    "make_executor": ".executors",
    "make_method": ".methods",
    "method_names": ".methods",
    "open_runner": ".runner",
    "read_networks": ".external_table",
    "read_targets": ".external_files",
    "register_method": ".methods",
    "verdict_from_csv": ".external_table",
    "without_rows": ".runner",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
