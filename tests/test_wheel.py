"""The wheel: complete, usable in an empty environment, and typed for the scripts of users."""

import os
import re
import runpy
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import tagalong

pytestmark = pytest.mark.slow

pytest.importorskip("hatchling", reason="needs the packages of tagalong[test]")

TESTS = Path(__file__).parent
ROOT = TESTS.parent
SCRIPT, MISTAKES = TESTS / "typed_script.py", TESTS / "typed_mistakes.py"
# Types that say nothing about ours, and that take mypy longer than everything else together.
UNREAD = """
ray rich sympy typer torch._dynamo torch._functorch torch._higher_order_ops torch._inductor torch.ao torch.distributed
torch.export torch.fx torch.jit torch.onnx
"""
MYPY_SETTINGS = f"""
[mypy]
strict = True
untyped_calls_exclude = torch
[mypy-{",".join(f"{package}.*" for package in UNREAD.split())}]
follow_imports = skip
"""


def run(*command: str | Path, folder: Path, status: int = 0) -> str:
    """Runs a command that does not see the checkout, and returns what it prints."""
    hidden = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}
    done = subprocess.run(command, cwd=folder, env=hidden, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(*(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder, ROOT), folder=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the programs of an environment that contains the wheel, and the packages that the tests run with."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    # A folder that a .pth file adds is searched, but its own .pth files, such as that of the checkout, are not read.
    installed = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (packages / "dependencies.pth").write_text("\n".join(installed))
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", folder / "bin" / "python")
    run(*pip, "install", "--quiet", "--no-index", "--no-deps", wheel, folder=folder)
    return folder / "bin"


def test_the_wheel_is_complete(wheel: Path) -> None:
    source = ROOT / "src"
    files = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    ours = {file for file in files if "__pycache__" not in file and ".egg-info" not in file}
    about = f"tagalong-{tagalong.__version__}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        assert {file for file in archive.namelist() if ".dist-info/" not in file} == ours
        assert archive.read(f"{about}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
        assert "tagalong = tagalong.cli:main" in archive.read(f"{about}/entry_points.txt").decode()


def test_the_wheel_runs_in_an_empty_environment(programs: Path, tmp_path: Path) -> None:
    where = "import tagalong, tagalong_paper; print(tagalong.__file__, tagalong_paper.__file__)"
    places = run(programs / "python", "-c", where, folder=tmp_path).split()
    assert all(Path(place).is_relative_to(programs.parent) for place in places)
    assert run(programs / "tagalong", "--version", folder=tmp_path) == f"tagalong {tagalong.__version__}\n"
    rows = [f"{x},{x % 7},{2 * x + x % 3},{x % 2}" for x in range(120)]
    (tmp_path / "table.csv").write_text("\n".join(["a,b,sum,odd", *rows]))
    quick = ["--methods", "mtl,tag", "--budgets", "2", "--seeds", "1", "--quiet", "--out", "out"]
    table = ["run", "table.csv", "--targets", "sum,odd", "--recipe", "epochs=2"]
    assert "\nUse " in run(programs / "tagalong", *table, *quick, folder=tmp_path)
    assert "plotly" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


@pytest.mark.usefixtures("one_thread")
def test_a_users_script_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(tmp_path / "run")])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    assert capsys.readouterr().out.endswith("True\n")


def test_mypy_accepts_a_users_script_and_finds_mistakes(programs: Path, tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="needs the packages of tagalong[dev]")
    (tmp_path / "mypy.ini").write_text(MYPY_SETTINGS)
    options = ["--cache-dir", os.devnull, "--python-executable", programs / "python"]
    printed = run(sys.executable, "-m", "mypy", *options, SCRIPT, MISTAKES, folder=tmp_path, status=1)
    found = re.findall(r"(\w+\.py):(\d+): error: .*\[([\w-]+)\]$", printed, re.MULTILINE)
    lines = enumerate(MISTAKES.read_text(encoding="utf-8").splitlines(), 1)
    mistakes = [
        (MISTAKES.name, str(number), line.split("mistake: ")[1]) for number, line in lines if "mistake: " in line
    ]
    assert len(mistakes) == 5
    assert found == mistakes, printed
