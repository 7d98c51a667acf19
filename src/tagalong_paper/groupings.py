"""The groupings of the paper's appendix (Fifty et al. 2021): tables of two, three and four splits.

CelebA: test error in percent, mean of three runs; Taskonomy: test loss of one run. A task that the table does not
print in bold only helps. In Taskonomy's tables s is printed as 0.532 and 0.528 and means 0.0532 and 0.0528.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

Results = dict[str, float]


class PrintedGroup(NamedTuple):
    """One network as printed: the test result of each task it trains, which are in bold, and any standard errors."""

    results: Results
    bold: frozenset[str]
    stderr: Results | None = None


class Printed(NamedTuple):
    """One grouping as printed, with the total of its results."""

    total: float
    groups: tuple[PrintedGroup, ...]


def _printed(total: float, *groups: tuple[str, Results] | tuple[str, Results, tuple[float, ...]]) -> Printed:
    """Groups as (tasks not in bold, results, their standard errors)."""
    return Printed(total, tuple(_group(*group) for group in groups))


def _group(helpers: str, results: Results, stderr: tuple[float, ...] | None = None) -> PrintedGroup:
    errors = None if stderr is None else dict(zip(results, stderr, strict=True))
    return PrintedGroup(results, frozenset(results) - set(helpers.split()), errors)


# fmt: off
PRINTED: Mapping[str, Mapping[int, Printed]] = {
    "celeba_tag": {
        2: _printed(
            49.66,
            ("", {"a1": 6.39, "a7": 4.79}, (0.006, 0.006)),
            ("", {"a2": 11.1, "a3": 4.16, "a4": 12.29, "a5": 2.55, "a6": 2.94, "a8": 4.69, "a9": 0.74},
             (0.065, 0.003, 0.202, 0.025, 0.015, 0.026, 0.013)),
        ),
        3: _printed(
            49.52,
            ("", {"a1": 6.39, "a7": 4.79}, (0.006, 0.006)),
            ("", {"a2": 11.08, "a4": 12.2}, (0.017, 0.067)),
            ("a2 a7", {"a2": 11.11, "a3": 4.08, "a5": 2.52, "a6": 2.96, "a7": 4.98, "a8": 4.73, "a9": 0.78},
             (0.127, 0.006, 0.025, 0.05, 0.058, 0.015, 0.009)),
        ),
        4: _printed(
            49.49,
            ("", {"a1": 6.39, "a7": 4.79}, (0.006, 0.006)),
            ("", {"a2": 11.08, "a4": 12.2}, (0.017, 0.067)),
            ("a7", {"a5": 2.63, "a6": 2.99, "a7": 4.75}, (0.003, 0.015, 0.012)),
            ("a2 a4 a7", {"a2": 11.0, "a3": 4.07, "a4": 12.4, "a7": 4.96, "a8": 4.62, "a9": 0.72},
             (0.013, 0.012, 0.045, 0.031, 0.009, 0.007)),
        ),
    },
    "celeba_cs": {
        2: _printed(
            49.86,
            ("", {"a5": 2.6, "a6": 3.05}, (0.01, 0.007)),
            ("a5", {"a1": 6.55, "a2": 11.19, "a3": 4.1, "a4": 12.02, "a5": 2.57, "a7": 4.78, "a8": 4.85, "a9": 0.73},
             (0.009, 0.02, 0.012, 0.029, 0.007, 0.015, 0.006, 0.01)),
        ),
        3: _printed(
            50.63,
            ("", {"a5": 2.6, "a6": 3.05}, (0.01, 0.007)),
            ("", {"a1": 6.39, "a7": 4.79}, (0.006, 0.006)),
            ("", {"a2": 11.2, "a3": 4.09, "a4": 12.97, "a8": 4.82, "a9": 0.73}, (0.031, 0.01, 0.015, 0.018, 0.003)),
        ),
        4: _printed(
            49.51,
            ("", {"a5": 2.6, "a6": 3.05}, (0.01, 0.007)),
            ("", {"a1": 6.39, "a7": 4.79}, (0.006, 0.006)),
            ("", {"a2": 11.08, "a4": 12.2}, (0.017, 0.067)),
            ("a2 a4 a7", {"a2": 11.0, "a3": 4.07, "a4": 12.4, "a7": 4.96, "a8": 4.62, "a9": 0.72},
             (0.013, 0.012, 0.045, 0.031, 0.009, 0.007)),
        ),
    },
    "celeba_hoa": {
        2: _printed(
            49.73,
            ("", {"a5": 2.59, "a7": 4.71}, (0.006, 0)),
            ("", {"a1": 6.49, "a2": 11.34, "a3": 4.25, "a4": 11.76, "a6": 3.0, "a8": 4.91, "a9": 0.69},
             (0.037, 0.022, 0.052, 0.09, 0.022, 0.059, 0.009)),
        ),
        3: _printed(
            49.73,
            ("", {"a5": 2.59, "a7": 4.71}, (0.006, 0)),
            ("", {"a2": 11.08, "a4": 12.2}, (0.017, 0.067)),
            ("a5 a7", {"a1": 6.55, "a3": 4.15, "a5": 2.7, "a6": 2.84, "a7": 4.9, "a8": 4.76, "a9": 0.75},
             (0.012, 0.013, 0.012, 0.003, 0.015, 0.015, 0.013)),
        ),
        4: _printed(
            49.73,
            ("", {"a5": 2.59, "a7": 4.71}, (0.006, 0)),
            ("", {"a2": 11.08, "a4": 12.2}, (0.017, 0.067)),
            ("", {"a1": 6.63, "a5": 2.7}, (0.024, 0.006)),
            ("a2 a5", {"a2": 11.25, "a3": 4.15, "a5": 2.58, "a6": 2.88, "a7": 4.9, "a8": 4.74, "a9": 0.76},
             (0.049, 0.024, 0.023, 0.045, 0.065, 0.026, 0.012)),
        ),
    },
    "taskonomy_tag": {
        2: _printed(
            0.5288,
            ("", {"s": 0.0532, "d": 0.2527, "n": 0.1064}),
            ("", {"t": 0.0232, "k": 0.0933}),
        ),
        3: _printed(
            0.5246,
            ("d", {"s": 0.0528, "d": 0.2636}),
            ("", {"t": 0.0232, "k": 0.0933}),
            ("n", {"d": 0.2551, "n": 0.1002}),
        ),
    },
    "taskonomy_cs": {
        2: _printed(
            0.5288,
            ("", {"s": 0.0532, "d": 0.2527, "n": 0.1064}),
            ("", {"t": 0.0232, "k": 0.0933}),
        ),
        3: _printed(
            0.5246,
            ("d", {"s": 0.0528, "d": 0.2636}),
            ("", {"t": 0.0232, "k": 0.0933}),
            ("n", {"d": 0.2551, "n": 0.1002}),
        ),
    },
    "taskonomy_hoa": {
        2: _printed(
            0.54,
            ("", {"s": 0.0603, "d": 0.2725, "n": 0.1075, "t": 0.0429}),
            ("n", {"n": 0.111, "k": 0.0568}),
        ),
        3: _printed(
            0.4923,
            ("", {"s": 0.0532, "d": 0.2527, "n": 0.1064}),
            ("n", {"n": 0.111, "k": 0.0568}),
            ("k", {"t": 0.0232, "k": 0.0933}),
        ),
    },
}
# fmt: on
