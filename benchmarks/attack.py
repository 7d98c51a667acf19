"""
Damages every file that a run writes, and every kind of table, and counts how the commands that read them react.

$ python benchmarks/attack.py
$ python benchmarks/attack.py --seed 7 --attempts 50
$ python benchmarks/attack.py --only run.sqlite

Each attempt copies a small run, damages one file and runs one command on it in a process of its own:

- fine: the command ended as if nothing had happened, possibly after training again.
- sentence: a message without a traceback names the damaged file.
- traceback: an error that nobody explains, a crash, or no answer within the limits.
- silent: other numbers without a message; if networks were trained again, even with a message.
- vague: a message that does not name the file, or that contains control characters.

Tables and other files that people write have no checksums, so any result is fine for them.
"""

import argparse
import os
import random
import re
import resource
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from attack_damage import damages_for, flip_byte, flip_bytes
from attack_sample import COMMANDS, Command, Ended, copy_folder, make_sample, predict_odd, prepare, run_odd
from attack_tables import random_array, random_table
from markdown import progress, table

OUTCOMES = ("fine", "sentence", "traceback", "silent", "vague")
FAULTS = OUTCOMES[2:]
WRITTEN_BY_PEOPLE = ("*.csv", "*.yaml", "*.npy", "files/scores.json")
TABLES, ARRAYS = "random tables", "random arrays"
OTHER_NAMES = ("column", "--")  # messages about a table may also name its columns, or options
STORE = "table/run.sqlite"
STORE_FLIPS, RANDOM_FILES = 6, 20  # per attempt on any other file
SECONDS, MEMORY = 180, 8 * 2**30  # limits of an attempt
UNEXPLAINED = 99  # exit status
NUMBERS = "numbers"
OUTPUTS = ("stdout", "stderr", NUMBERS)  # files of an attempt
KEY = re.compile(r"[0-9a-f]{16,}")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
Damager = Callable[[Path, random.Random], str]


@dataclass(frozen=True)
class Target:
    """A file, and a command that reads it.

    Attributes:
        file: the file, with * for the keys of networks, or a kind of random files.
        command: the command.
        intact: the numbers of the command for intact files; None for files that people write.
    """

    file: str
    command: Command
    intact: str | None

    def __str__(self) -> str:
        return f"{self.file} × {self.command}"


@dataclass(frozen=True)
class Ending:
    """How a command ended.

    Attributes:
        status: the exit status; negative if a signal ended it.
        printed: what it printed to standard output.
        said: its messages on standard error.
        numbers: the numbers that it computed, if it did not print them.
    """

    status: int
    printed: str
    said: str
    numbers: str


def run_isolated(call: Callable[[], str], work: Path) -> Ending:
    """Runs a function in a copy of this process, within limits of time and memory, in this directory."""
    sys.stdout.flush()
    if (child := os.fork()) == 0:
        _run_child(call, work)
    _, status = os.waitpid(child, 0)
    printed, said, numbers = ((work / name).read_text(errors="replace") for name in OUTPUTS)
    return Ending(os.waitstatus_to_exitcode(status), printed, said.replace(f"{work}/", ""), numbers)


def _run_child(call: Callable[[], str], work: Path) -> None:
    status = UNEXPLAINED
    try:
        for number, name in enumerate(OUTPUTS, 1):
            file = os.open(work / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            if name != NUMBERS:
                os.dup2(file, number)
        os.chdir(work)
        signal.alarm(SECONDS)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        warnings.resetwarnings()
        numbers = call()
        (work / NUMBERS).write_text(numbers)
        status = 0
    except Ended as ended:
        status = ended.args[0]
    except BaseException as error:
        if isinstance(error, ValueError) and type(error).__module__.startswith("tagalong"):
            print(error, file=sys.stderr)
            status = 2
        else:
            traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


@contextmanager
def workspace(sample: Path, folder: str) -> Iterator[Path]:
    """Copies the files that a command needs to a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="attack-", ignore_cleanup_errors=True) as work:
        copy_folder(sample, folder, Path(work))
        yield Path(work)


def find_targets(sample: Path, command: Command) -> list[Target]:
    """Runs a command on intact files, and finds those that it reads."""

    def call() -> str:
        originals = {path.stat().st_ino: str(path) for path in Path().rglob("*") if path.is_file()}
        opened: set[str] = set()

        def note(event: str, arguments: tuple[object, ...]) -> None:
            is_read = event == "sqlite3.connect" or (event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR))
            if is_read and isinstance(arguments[0], (str, bytes, os.PathLike)):
                with suppress(OSError):
                    opened.add(originals.get(os.stat(arguments[0]).st_ino, ""))

        sys.addaudithook(note)
        numbers = command.call()
        Path("opened").write_text("\n".join(opened - {""}))
        return numbers

    with workspace(sample, command.folder) as work:
        ending = run_isolated(call, work)
        if ending.status or ending.said:
            raise SystemExit(f"{command} does not succeed on intact files: {ending.said or ending.status}")
        found = (work / "opened").read_text().splitlines()
    intact = ending.printed + ending.numbers
    own = {KEY.sub("*", name) for name in found if name.startswith(f"{command.folder}/") or name == command.also}
    return [Target(name, command, None if _is_written_by_people(name) else intact) for name in sorted(own)]


def _is_written_by_people(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in WRITTEN_BY_PEOPLE)


def damagers(target: Target, attempts: int) -> list[Damager]:
    """Returns the ways of damaging this target, one for each attempt."""
    if target.file == TABLES:
        return [_write_random(random_table)] * (RANDOM_FILES * attempts)
    if target.file == ARRAYS:
        return [_write_random(random_array)] * (RANDOM_FILES * attempts)
    kinds = damages_for(target.file)
    chosen = [kinds[number % len(kinds)] for number in range(attempts)]
    if target.file == STORE:
        chosen += [(flip_byte, flip_bytes)[number % 2] for number in range(STORE_FLIPS * attempts)]

    def damage_file(kind: Callable[[bytes, random.Random], bytes]) -> Damager:
        def damage(work: Path, rng: random.Random) -> str:
            file = rng.choice(sorted(work.glob(target.file)))
            file.write_bytes(kind(file.read_bytes(), rng))
            return file.name

        return damage

    return [damage_file(kind) for kind in chosen]


def _write_random(draw: Callable[[random.Random], tuple[str, bytes]]) -> Damager:
    def damage(work: Path, rng: random.Random) -> str:
        name, content = draw(rng)
        (work / name).write_bytes(content)
        (work / "odd").symlink_to(name)
        return name

    return damage


def classify(ending: Ending, target: Target, names: Collection[str]) -> str:
    """Returns the outcome of an attempt, whose messages must contain one of these names.

    Only the numbers of edited JSON may change if there is a warning: stored networks are trained again.
    """
    if ending.status < 0 or ending.status == UNEXPLAINED or "Traceback" in ending.said or "Warning: " in ending.said:
        return "traceback"
    if CONTROL.search(ending.printed + ending.said):
        return "vague"
    is_same = target.intact is None or ending.printed + ending.numbers == target.intact
    if ending.status == 0 and not is_same and not (ending.said and target.file.endswith(".json")):
        return "silent"
    if not ending.said:
        return "fine" if ending.status == 0 else "vague"
    return "sentence" if any(name in ending.said for name in names) else "vague"


def attack(sample: Path, target: Target, attempts: int, seed: int, only: str) -> Iterator[tuple[str, str, str]]:
    """Yields the name, the outcome and the messages of each attempt whose name contains `only`."""
    for number, damage in enumerate(damagers(target, attempts)):
        label = f"{target} × {number}"
        if only not in f"{label}.":
            continue
        with workspace(sample, target.command.folder) as work:
            names = [damage(work, random.Random(f"{seed} {label}"))]
            ending = run_isolated(target.command.call, work)
        if target.file in (TABLES, ARRAYS):
            names += OTHER_NAMES
        yield label, classify(ending, target, names), ending.said


def _may_match(command: Command, only: str) -> bool:
    folder, slash, _ = only.partition("/")
    return not slash or folder in ("", command.folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--seed", type=int, default=0, help="random seed of the attack (default: %(default)s)")
    parser.add_argument(
        "--attempts", type=int, default=12, help="attempts on each file and command (default: %(default)s)"
    )
    parser.add_argument("--only", default="", help="only attempts whose name contains this, e.g. run.sqlite")
    args = parser.parse_args()
    prepare()
    with tempfile.TemporaryDirectory() as folder:
        sample = Path(folder)
        progress("making the runs to attack")
        made = run_isolated(lambda: make_sample() or "", sample)
        if made.status:
            raise SystemExit(made.said)
        commands = [command for command in COMMANDS if _may_match(command, args.only)]
        targets = [target for command in commands for target in find_targets(sample, command)]
        targets += [Target(TABLES, command, None) for command in (run_odd, predict_odd)]
        targets += [Target(ARRAYS, predict_odd, None)]
        rows, faults = [], []
        for target in targets:
            found = list(attack(sample, target, args.attempts, args.seed, args.only))
            counts = Counter(outcome for _, outcome, _ in found)
            if found:
                progress(f"{target}: {dict(counts)}")
                rows.append([target.file, str(target.command), str(len(found)), *(str(counts[o]) for o in OUTCOMES)])
            faults += [fault for fault in found if fault[1] in FAULTS]
    sums = [str(sum(int(row[column]) for row in rows)) for column in range(2, len(OUTCOMES) + 3)]
    print(table(["file", "command", "tried", *OUTCOMES], [*rows, ["all", "", *sums]]))
    for label, outcome, said in faults:
        print(f"\n{outcome}: --seed {args.seed} --attempts {args.attempts} --only '{label}.'\n{said[-2000:]}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
