"""The groupings that the paper calls optimal: the lowest total on test, over all subsets of tasks."""

from __future__ import annotations

from collections.abc import Mapping

from .._printed import Printed, _printed

# fmt: off
OPTIMAL: Mapping[str, Mapping[int, Printed]] = {
    "celeba": {
        2: _printed(
            49.37,
            ("a2 a3 a4",
             {"a1": 6.6, "a2": 11.21, "a3": 4.4, "a4": 11.91, "a5": 2.6, "a6": 2.87, "a7": 4.81, "a8": 4.58}),
            ("", {"a2": 11.14, "a3": 4.03, "a4": 11.9, "a9": 0.75}),
        ),
        3: _printed(
            48.92,
            ("a1 a7 a9", {"a1": 6.34, "a5": 2.57, "a6": 2.91, "a7": 4.74, "a8": 4.7, "a9": 0.78}),
            ("", {"a2": 11.14, "a3": 4.03, "a4": 11.9, "a9": 0.75}),
            ("a9", {"a1": 6.25, "a7": 4.67, "a9": 0.71}),
        ),
        4: _printed(
            48.57,
            ("a2 a3", {"a2": 11.2, "a3": 4.09, "a4": 11.77}),
            ("a7", {"a3": 4.0, "a6": 2.9, "a7": 4.85, "a9": 0.75}),
            ("a9", {"a1": 6.25, "a7": 4.67, "a9": 0.71}),
            ("a4 a9", {"a2": 10.96, "a4": 12.74, "a5": 2.56, "a8": 4.75, "a9": 0.77}),
        ),
    },
    "taskonomy": {
        2: _printed(
            0.5176,
            ("", {"s": 0.0532, "d": 0.2527, "n": 0.1064}),
            ("n", {"n": 0.1096, "t": 0.0271, "k": 0.075}),
        ),
        3: _printed(
            0.4862,
            ("s n", {"s": 0.0532, "d": 0.2527, "n": 0.1064}),
            ("", {"s": 0.05, "n": 0.1025, "t": 0.0242}),
            ("n", {"n": 0.111, "k": 0.0568}),
        ),
    },
}
# fmt: on
