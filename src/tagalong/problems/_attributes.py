"""Who is to be drawn: nine attributes that depend on each other as in photographs of well-known people.

The rare ones are about twice as frequent as in CelebA, so that small problems hold some of each.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ATTRIBUTES = (
    "5_o_Clock_Shadow",
    "Black_Hair",
    "Blond_Hair",
    "Brown_Hair",
    "Goatee",
    "Mustache",
    "No_Beard",
    "Rosy_Cheeks",
    "Wearing_Hat",
)
HAIR = ("Black_Hair", "Blond_Hair", "Brown_Hair")  # else grey, red or none
HAIR_OF_MEN = (0.33, 0.09, 0.23)
HAIR_OF_WOMEN = (0.24, 0.28, 0.28)
HAIR_OF_DARK_SKIN = (0.72, 0.04, 0.14)
Flags = NDArray[np.bool_]


def draw_attributes(rows: int, random: np.random.Generator) -> tuple[dict[str, Flags], Flags, NDArray[np.float64]]:
    """The attributes of each face, whether it is a man's, and how dark its skin is (0 to 1)."""

    def chance(probability: NDArray[np.float64] | float) -> Flags:
        return random.random(rows) < probability

    man = chance(0.45)
    skin = random.beta(1.2, 2.2, rows)
    shaved = chance(np.where(man, 0.42, 0.995))
    shadow = man & chance(np.where(shaved, 0.2, 0.42))
    goatee = man & ~shaved & chance(0.45)
    mustache = man & ~shaved & chance(np.where(goatee, 0.55, 0.3))
    rosy = chance(np.where(man, 0.02, 0.24) * np.where(skin < 0.5, 1.2, 0.4))
    hat = chance(np.where(man, 0.2, 0.08))
    attributes = {
        "5_o_Clock_Shadow": shadow,
        "Goatee": goatee,
        "Mustache": mustache,
        "No_Beard": ~(goatee | mustache | (shadow & ~shaved)),
        "Rosy_Cheeks": rosy,
        "Wearing_Hat": hat,
    }
    chances = np.where(man[:, None], HAIR_OF_MEN, HAIR_OF_WOMEN)
    chances = np.where((skin > 0.55)[:, None], HAIR_OF_DARK_SKIN, chances)
    place = (random.random(rows)[:, None] > chances.cumsum(1)).sum(1)
    attributes |= {name: place == number for number, name in enumerate(HAIR)}
    return {name: attributes[name] for name in ATTRIBUTES}, man, skin


def mislabelled(attributes: dict[str, Flags], noise: float, random: np.random.Generator) -> dict[str, Flags]:
    """Labels as annotators give them: each wrong with a chance of `noise`, scaled so that rare ones stay rare."""
    labels = {}
    for name, flags in attributes.items():
        share = flags.mean()
        # As many wrong in either direction: the share of positives stays.
        chance = np.where(flags, noise * 2 * (1 - share), noise * 2 * share)
        labels[name] = flags ^ (random.random(len(flags)) < chance)
    return labels
