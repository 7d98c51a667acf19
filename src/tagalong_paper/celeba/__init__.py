"""CelebA (Liu et al. 2015), from the user's own copy of the data."""

from .problem import celeba as celeba
