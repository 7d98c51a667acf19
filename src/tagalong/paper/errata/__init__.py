"""Where the paper disagrees with itself, with its published matrices and code, or with what can be proven."""

from ._erratum import Erratum as Erratum
from ._headlines import headlines as headlines
from ._selector import selector as selector
from ._setting import setting as setting
from ._tables import columns_and_totals as columns_and_totals
from ._tables import misprints as misprints
from ._tables import printed_twice as printed_twice
from ._tables import served_wrongly as served_wrongly
from ._theory import theory as theory


def errata() -> list[Erratum]:
    """All of them, computed again from the printed numbers wherever that can be done.

    Example:
        >>> len(errata()) > 20
        True
    """
    tables = [*columns_and_totals(), *served_wrongly(), *printed_twice(), *misprints()]
    return [*headlines(), *tables, *setting(), *selector(), *theory()]
