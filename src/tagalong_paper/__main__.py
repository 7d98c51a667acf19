"""Runs `tagalong` with the paper's plug-ins from a source checkout: `python -m tagalong_paper`."""

from __future__ import annotations

import sys

from tagalong.cli import main

from .registration import register

if __name__ == "__main__":
    register()
    sys.exit(main())
