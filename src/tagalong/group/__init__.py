"""Which networks should there be?"""

from .given_groups import read_groups as read_groups
from .given_groups import score_grouping as score_grouping
from .grouping import Group as Group
from .grouping import Grouping as Grouping
from .grouping import GroupingFileError as GroupingFileError
from .grouping import Option as Option
from .grouping import from_document as from_document
from .grouping import to_document as to_document
from .grouping_text import Comparison as Comparison
from .grouping_text import remarks as remarks
from .grouping_text import summary as summary
from .score_files import read_costs as read_costs
from .score_files import read_table as read_table
from .score_tables import ScoreTable as ScoreTable
from .score_tables import TableError as TableError
from .score_tables import read_text as read_text
from .scores import Candidate as Candidate
from .select import select_groups as select_groups
from .solvers.certificate import Certificate as Certificate
from .solvers.certificate import check_certificate as check_certificate
from .solvers.ties import LISTED as LISTED
from .stability import Stability as Stability
