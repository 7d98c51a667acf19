"""Notes on what affinity is not, added wherever affinities and results are shown or saved."""

from __future__ import annotations

import re
from collections.abc import Iterable

GENERAL = "Affinity says what one network did with one data set. It is not similarity of tasks, nor cause and effect."
PEOPLE = (
    "Some of these tasks look as if they were about people ({named}). That such tasks train well together says nothing "
    "about the people, and must not be read as a link between these traits."
)

# Words of task names, whole or as a beginning (…*), that speak of what people must not be judged by.
SENSITIVE = {
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


def caution(tasks: Iterable[str]) -> str:
    """The caution for these tasks; tasks that are about people are named.

    Example:
        >>> caution(["depth", "normals"]) == GENERAL
        True
        >>> "gender: is_male; age: Young" in caution(["is_male", "Young", "depth"])
        True
    """
    found = sensitive(tasks)
    if not found:
        return GENERAL
    named = "; ".join(f"{trait}: {', '.join(names)}" for trait, names in found.items())
    return f"{GENERAL} {PEOPLE.format(named=named)}"


def sensitive(tasks: Iterable[str]) -> dict[str, list[str]]:
    """The tasks whose names speak of sensitive traits, by trait."""
    found: dict[str, list[str]] = {}
    for task in tasks:
        words = re.findall(r"[a-z0-9]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", task).lower())
        for trait, terms in SENSITIVE.items():
            if any(_matches(word, term) for word in words for term in terms.split()):
                found.setdefault(trait, []).append(task)
                break
    return found


def _matches(word: str, term: str) -> bool:
    return word.startswith(term[:-1]) if term.endswith("*") else word == term
