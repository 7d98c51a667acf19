from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from tagalong.affinity import Affinity, AffinityFileError

task_names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), min_size=1).filter(
    lambda name: name == name.strip()
)


@given(data=st.data())
@settings(deadline=None)
def test_a_saved_table_is_read_back_exactly(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    tasks = data.draw(st.lists(task_names, min_size=1, max_size=4, unique=True))
    values = st.floats(allow_infinity=False)
    matrix = data.draw(npst.arrays(np.float64, (len(tasks), len(tasks)), elements=values))
    path = tmp_path_factory.getbasetemp() / "table.csv"
    affinity = Affinity.from_matrix(matrix, tasks)
    assert affinity.to_csv(path) == affinity.to_csv()
    other = Affinity.from_csv(path)
    assert other.tasks == affinity.tasks
    np.testing.assert_array_equal(other.mean, affinity.mean)


def read(tmp_path: Path, text: str, axis: str = "source") -> Affinity:
    path = tmp_path / "table.csv"
    path.write_bytes(text.encode())
    return Affinity.from_csv(path, axis=axis)  # type: ignore[arg-type]


def test_the_first_column_holds_sources(tmp_path: Path) -> None:
    affinity = read(tmp_path, "source,a,b\na,1,2\nb,3,4\n")
    assert affinity.mean.tolist() == [[1, 2], [3, 4]]
    assert read(tmp_path, "target,a,b\na,1,2\nb,3,4\n", axis="target").mean.tolist() == [[1, 3], [2, 4]]


def test_columns_in_another_order_are_reordered(tmp_path: Path) -> None:
    affinity = read(tmp_path, ",b,a\na,2,1\nb,4,3\n")
    assert affinity.tasks == ("a", "b")
    assert affinity.mean.tolist() == [[1, 2], [3, 4]]


def test_tables_saved_by_a_spreadsheet_are_read(tmp_path: Path) -> None:
    affinity = read(tmp_path, "\ufeff, a ,b\r\n\r\na, 1.5,\r\n b,-2e-3, 4\r\n,,\r\n")
    assert affinity.tasks == ("a", "b")
    np.testing.assert_array_equal(affinity.mean, [[1.5, np.nan], [-2e-3, 4]])


def test_tasks_may_be_numbered(tmp_path: Path) -> None:
    assert read(tmp_path, ",0,1\n0,1,2\n1,3,4\n").tasks == ("0", "1")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", "table.csv"),
        ("a b\na 1\n", "table.csv"),
        ("1,2,3\n4,5,6\n7,8,9\n", "table.csv"),
        (",a,b\na,1,2\n", "'b'"),
        (",a,b\na,1,2\nb,1,2\nc,1,2\n", "'c'"),
        (",a,b\na,1,2\nb,1\n", "table.csv, line 3"),
        (",a,b\na,1,2\nb,1,2,3\n", "table.csv, line 3"),
        (",a,a\na,1,2\n", "'a'"),
        (",a,\na,1,2\n", "table.csv"),
        (",a,b\na,1,2\na,1,2\n", "'a', 'b'"),
        (",a,b\na,1,2\nb,x,2\n", "line 3, column 'a'"),
        (",a,b\na,1,2\nb,inf,2\n", "line 3, column 'a'"),
    ],
)
def test_errors_say_where(tmp_path: Path, text: str, place: str) -> None:
    with pytest.raises(AffinityFileError, match=place) as caught:
        read(tmp_path, text)
    assert "table.csv" in str(caught.value)


def test_one_error_lists_all_cells_that_are_not_numbers(tmp_path: Path) -> None:
    with pytest.raises(AffinityFileError) as caught:
        read(tmp_path, ",a,b,c\na,1,x,3\nb,1,2,y\nc,1,2,3\n")
    assert "line 2, column 'b'" in str(caught.value)
    assert "line 3, column 'c'" in str(caught.value)


def test_a_file_that_is_not_text_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(b"\xff\xfe\x00\x81\x00")
    with pytest.raises(AffinityFileError, match=r"table\.csv is not a text file"):
        Affinity.from_csv(path)


def test_a_missing_file_is_a_file_not_found_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Affinity.from_csv(tmp_path / "none.csv")


@pytest.mark.parametrize(("corner", "axis"), [("target", "source"), ("onto", "source"), ("source", "target")])
def test_a_first_cell_that_contradicts_the_axis_is_rejected(tmp_path: Path, corner: str, axis: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text(f"{corner},a,b\na,1,2\nb,3,4\n")
    with pytest.raises(AffinityFileError, match="the first cell must match `axis"):
        Affinity.from_csv(path, axis=axis)  # type: ignore[arg-type]
