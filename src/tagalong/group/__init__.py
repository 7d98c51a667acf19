"""Which networks should there be?"""

from ._candidate import Candidate as Candidate
from ._certificate import Certificate as Certificate
from ._certificate import check_certificate as check_certificate
from ._comparison import Comparison as Comparison
from ._given import score_grouping as score_grouping
from ._grouping import Group as Group
from ._grouping import Grouping as Grouping
from ._grouping import Option as Option
from ._grouping_file import GroupingFileError as GroupingFileError
from ._hand_made import read_groups as read_groups
from ._select import select_groups as select_groups
from ._stability import Stability as Stability
from .tables import ScoreTable as ScoreTable
from .tables import TableError as TableError
from .tables import read_costs as read_costs
from .tables import read_table as read_table
