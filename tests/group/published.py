"""What is known of the published matrices: their optima, and the groupings that the paper prints.

The matrices themselves are in `tagalong_paper`. Optima were computed in exact rational arithmetic by a program over
served sets; for CelebA up to k = 4 and for Taskonomy also by trying every set of k groups. The printed groupings are
those of the paper's tables of two, three and four splits.
"""

from tagalong_paper import CELEBA as CELEBA
from tagalong_paper import MATRICES as MATRICES
from tagalong_paper import TASKONOMY as TASKONOMY

# problem: budget: (optimum, {what a group trains: what it serves}); CelebA tasks by their number
OPTIMA: dict[str, dict[int, tuple[float, dict[str, str]]]] = {
    "celeba_tag": {
        1: (-962.1490667175444, {"123456789": "123456789"}),
        2: (-894.9763683354549, {"17": "17", "23456789": "2345689"}),
        3: (-831.9458635761177, {"24": "24", "17": "17", "2356789": "35689"}),
        4: (-781.9135475693955, {"24": "24", "17": "17", "567": "56", "234789": "389"}),
        5: (-764.95945432155, {"24": "24", "56": "6", "17": "17", "57": "5", "234789": "389"}),
    },
    "celeba_cs": {
        1: (4.247383130154376, {"123456789": "123456789"}),
        2: (8.696005791751672, {"56": "56", "12345789": "1234789"}),
        3: (11.78573539140825, {"56": "56", "17": "17", "23489": "23489"}),
        4: (13.446071971238547, {"24": "24", "56": "56", "17": "17", "234789": "389"}),
        5: (13.729562505985209, {"24": "24", "56": "56", "17": "17", "348": "38", "59": "9"}),
    },
    "celeba_hoa": {
        1: (840.765, {"123456789": "123456789"}),
        2: (841.3166666666667, {"57": "57", "1234689": "1234689"}),
        3: (841.5866666666667, {"24": "24", "57": "57", "1356789": "13689"}),
        4: (841.75, {"24": "24", "15": "1", "57": "57", "2356789": "3689"}),
        5: (841.8833333333333, {"24": "24", "15": "1", "57": "57", "48": "8", "3569": "369"}),
    },
    "taskonomy_tag": {
        1: (0.6464616531362235, {"dknst": "dknst"}),
        2: (1.6084790161972982, {"dns": "dns", "kt": "kt"}),
        3: (1.7433519915118598, {"ds": "ds", "dn": "n", "kt": "kt"}),
        4: (1.7433519915118598, {"ds": "ds", "dn": "n", "kt": "kt"}),
        5: (1.7433519915118598, {"ds": "ds", "dn": "n", "kt": "kt"}),
    },
    "taskonomy_cs": {
        1: (2.599162757769194, {"dknst": "dknst"}),
        2: (7.349686788863263, {"dns": "dns", "kt": "kt"}),
        3: (8.018898190524794, {"ds": "s", "dn": "dn", "kt": "kt"}),
        4: (8.018898190524794, {"ds": "s", "dn": "dn", "kt": "kt"}),
        5: (8.018898190524794, {"ds": "s", "dn": "dn", "kt": "kt"}),
    },
    "taskonomy_hoa": {
        1: (0.544675, {"dknst": "dknst"}),
        2: (0.5093, {"dnst": "dnst", "kn": "k"}),
        3: (0.4896, {"dns": "dns", "kn": "k", "kt": "t"}),
        4: (0.4824, {"ns": "s", "dn": "dn", "kn": "k", "kt": "t"}),
        5: (0.4797, {"n": "n", "ns": "s", "dn": "d", "kn": "k", "kt": "t"}),
    },
}

# problem: budget: groups as printed in the paper
PRINTED = {
    "celeba_tag": {
        2: ["17", "2345689"],
        3: ["17", "24", "2356789"],
        4: ["17", "24", "567", "234789"],
    },
    "celeba_cs": {
        2: ["56", "12345789"],
        3: ["56", "17", "23489"],
        4: ["56", "17", "24", "234789"],
    },
    "celeba_hoa": {
        2: ["57", "1234689"],
        3: ["57", "24", "1356789"],
        4: ["57", "24", "15", "2356789"],
    },
    "taskonomy_tag": {
        2: ["dns", "kt"],
        3: ["ds", "kt", "dn"],
    },
    "taskonomy_cs": {
        2: ["dns", "kt"],
        3: ["ds", "kt", "dn"],
    },
    "taskonomy_hoa": {
        2: ["dnst", "kn"],
        3: ["dns", "kn", "kt"],
    },
}
