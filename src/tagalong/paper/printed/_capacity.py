"""The appendix's tables of larger networks: method and how many times the channels.

In Taskonomy's table s of "MTL (2x)" is printed as 0.00536 and means 0.0536, k as 0.11.73 and means 0.1173.
"""

from __future__ import annotations

from collections.abc import Mapping

from ._baselines import Baseline, celeba, taskonomy

# fmt: off
CAPACITY: Mapping[str, Mapping[tuple[str, int], Baseline]] = {
    "celeba": {
        ("mtl", 2): celeba(51.02, (6.42, 10.76, 4.35, 13.01, 2.66, 3.05, 4.76, 5.20, 0.80)),
        ("mtl", 3): celeba(51.05, (6.43, 11.65, 4.21, 12.69, 2.61, 2.94, 4.87, 4.86, 0.80)),
        ("mtl", 4): celeba(50.57, (6.91, 11.23, 4.31, 12.51, 2.57, 3.01, 4.59, 4.81, 0.64)),
        ("uw", 2): celeba(50.36, (6.40, 11.01, 4.36, 12.54, 2.63, 3.03, 4.68, 5.00, 0.71)),
        ("uw", 3): celeba(50.00, (6.36, 11.32, 4.27, 12.12, 2.51, 2.94, 4.93, 4.76, 0.79)),
        ("uw", 4): celeba(50.71, (6.70, 11.49, 4.37, 12.35, 2.63, 3.07, 4.61, 4.83, 0.64)),
        ("gradnorm", 2): celeba(50.57, (6.38, 10.98, 4.13, 12.57, 2.71, 3.00, 4.73, 5.21, 0.86)),
        ("gradnorm", 3): celeba(51.00, (6.38, 11.67, 4.35, 12.35, 2.61, 3.00, 4.93, 4.86, 0.85)),
        ("gradnorm", 4): celeba(51.74, (6.56, 11.49, 4.33, 13.29, 2.57, 3.07, 4.82, 4.82, 0.78)),
    },
    "taskonomy": {
        ("mtl", 2): taskonomy(0.5892, (0.0536, 0.2664, 0.1078, 0.0441, 0.1173)),
        ("mtl", 3): taskonomy(0.5866, (0.0538, 0.2891, 0.1090, 0.0363, 0.0984)),
        ("gradnorm", 2): taskonomy(0.5891, (0.0552, 0.2977, 0.1013, 0.0289, 0.1060)),
        ("gradnorm", 3): taskonomy(0.5827, (0.0570, 0.2806, 0.1044, 0.0401, 0.1006)),
    },
}
# fmt: on
