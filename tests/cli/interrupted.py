"""`tagalong …` that presses Ctrl-C: `python interrupted.py N FOLDER run …`, at its n-th file operation in the folder.

Its worker processes run this file too; whichever comes to its n-th operation first presses, and the whole process
group is interrupted, as it is by a terminal.
"""

import os
import signal
import sys
from pathlib import Path

from kill_at import FileOperations
from tagalong.cli import main
from tagalong.study import executors


def press() -> None:
    try:
        Path("pressed").touch(exist_ok=False)
    except FileExistsError:
        return
    os.killpg(0, signal.SIGINT)


if __name__ in ("__main__", "__mp_main__"):  # the second in a worker
    executors.CHECKPOINT_SECONDS = 0.0  # written after every epoch
    FileOperations(Path(sys.argv[2]), int(sys.argv[1]), press)

if __name__ == "__main__":
    sys.exit(main(sys.argv[3:]))
