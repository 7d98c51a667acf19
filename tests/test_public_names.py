"""The names that users import; none is lost by accident."""

from importlib import import_module

import pytest

import tagalong

NAMES = {
    "tagalong": """
        __version__ Affinity AffinityMeter ExternalStudy Group Grouping GroupingsByBudget MLP Problem Recipe Results
        Study Task Verdict select_groups show_versions
    """,
    "tagalong.affinity": "Affinity",
    "tagalong.measure": """
        AffinityMeter Auto ClosureError Estimator Every Observed RoundRobin Schedule
        estimator_names register_estimator
    """,
    "tagalong.group": """
        Candidate Group GroupEvidence Grouping GroupingsByBudget group_evidence score_grouping
        select_groups
    """,
    "tagalong.learn": """
        Job MLP Problem Recipe Split StreamedRows TabM Task mix_rows mix_targets quantile_edges teach train
        train_many
    """,
    "tagalong.study": """
        Runner Best Choice Decision ExternalStudy Method Record Results Study Verdict compare_methods
        default_methods make_method method_names open_runner register_method verdict_from_csv
    """,
    "tagalong.problems": "ProblemSpec known_problems load_problem problem_names register_problem",
    "tagalong.report": """
        affinity_heatmap affinity_over_training gain_by_models task_skills write_report
    """,
    "tagalong.cli": "JsonOption TextTable complete_problems main print_table",
}


@pytest.mark.parametrize("door", NAMES)
def test_public_names_can_be_imported(door: str) -> None:
    module = import_module(door)
    assert [name for name in NAMES[door].split() if not hasattr(module, name)] == []


def test_tagalong_lists_its_public_names() -> None:
    assert set(tagalong.__all__) == set(NAMES["tagalong"].split())
