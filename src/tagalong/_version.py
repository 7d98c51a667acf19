"""The release, the numerics version that store keys carry, and the names of our own packages."""

__version__ = "0.1.0"

# Part of every key of a trained network. Add one when the same definition trains to other numbers than before (another
# order of rows, another first weight, another loss), and never for anything else: all networks are then trained again.
NUMERICS = 1

OWN_PACKAGES = ("tagalong", "tagalong_paper")


def is_own(module: str) -> bool:
    """Whether the module of this name is one of ours, so that its code is known and not a user's.

    Example:
        >>> is_own("tagalong.learn"), is_own("tagalong_paper.celeba"), is_own("tagalong_extras")
        (True, True, False)
    """
    return module.partition(".")[0] in OWN_PACKAGES
