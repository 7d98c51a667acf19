"""Plug-ins that add CelebA and Taskonomy to `tagalong problems` and `load_problem`."""

from __future__ import annotations

from tagalong.problems import ProblemSpec

CELEBA = ProblemSpec(
    "celeba",
    "photographs with attributes of CelebA, from your own copy (--with data=FOLDER)",
    tasks=9,
    size="202,599 images of 64×64",
    module="tagalong_paper.celeba",
    package="PIL",
    install="tagalong[images]",
)
TASKONOMY = ProblemSpec(
    "taskonomy",
    "rooms of buildings: segmentation, depth, normals, 2d edges, 2d keypoints",
    tasks=5,
    size="your copy of Taskonomy, images of 256×256",
    module="tagalong_paper.taskonomy",
    package="PIL",
    install="tagalong[images]",
)
