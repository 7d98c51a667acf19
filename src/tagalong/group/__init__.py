"""Which networks should there be?"""

from ._exact import exact_groups as exact_groups
