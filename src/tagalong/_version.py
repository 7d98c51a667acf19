"""The release version, the numerics version used in store keys, and the names of the project's own packages."""

__version__ = "0.2.0"

# Part of the key of every trained network. Increment it only if training the same definition gives different numbers
# than before (e.g. because of a different row order, initialization or loss), since all networks are then retrained.
NUMERICS = 1

OWN_PACKAGES = ("tagalong", "tagalong_paper")


def is_own_module(module: str) -> bool:
    """Whether a module belongs to this project rather than to user code.

    Example:
        >>> is_own_module("tagalong.learn"), is_own_module("tagalong_paper.celeba"), is_own_module("tagalong_extras")
        (True, True, False)
    """
    return module.partition(".")[0] in OWN_PACKAGES
