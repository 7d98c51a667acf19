"""A disclaimer about what affinity does not mean, included wherever affinities and results are shown or saved."""

from __future__ import annotations

import re
from collections.abc import Iterable

GENERAL_DISCLAIMER = (
    "Affinity describes how one network trained on one data set. It implies neither similarity nor causation."
)
PEOPLE_DISCLAIMER = (
    "Some of these tasks seem to be about people ({named}). That such tasks train well together says nothing about "
    "people and must not be interpreted as a link between these traits."
)

# Words in task names that suggest a sensitive personal trait; an asterisk matches any ending.
SENSITIVE_TRAITS = {
    "gender": "gender sex male female man woman men women boy girl trans*",
    "race and origin": "race racial ethnic* skin nationality citizen* immigra* migra* hispanic asian black white caste",
    "religion": "religi* faith church muslim christian jewish hindu",
    "age": "age ages young old elderly",
    "health": "health* ill illness disease* diagnos* disab* pregnan* cancer diabet* depress* hiv bmi blood cholesterol "
    "glucose hba1c systolic diastolic hdl ldl triglycerides creatinine insulin smok* alcohol drug* mental",
    "sexuality": "sexual* gay lesbian orientation",
    "appearance": "attractive chubby beard makeup bald face facial",
    "belief and standing": "politic* party vote* union income poverty wealth crime criminal convict*",
}


def disclaimer(tasks: Iterable[str]) -> str:
    """Returns the disclaimer for these tasks, listing those that seem to be about people.

    Example:
        >>> disclaimer(["depth", "normals"]) == GENERAL_DISCLAIMER
        True
        >>> "gender: is_male; age: Young" in disclaimer(["is_male", "Young", "depth"])
        True
    """
    found = find_sensitive_tasks(tasks)
    if not found:
        return GENERAL_DISCLAIMER
    named = "; ".join(f"{trait}: {', '.join(names)}" for trait, names in found.items())
    return f"{GENERAL_DISCLAIMER} {PEOPLE_DISCLAIMER.format(named=named)}"


def find_sensitive_tasks(tasks: Iterable[str]) -> dict[str, list[str]]:
    """Returns the tasks whose names suggest a sensitive personal trait, grouped by trait."""
    found: dict[str, list[str]] = {}
    for task in tasks:
        words = re.findall(r"[a-z0-9]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", task).lower())
        for trait, terms in SENSITIVE_TRAITS.items():
            if any(_matches(word, term) for word in words for term in terms.split()):
                found.setdefault(trait, []).append(task)
                break
    return found


def _matches(word: str, term: str) -> bool:
    return word.startswith(term[:-1]) if term.endswith("*") else word == term
