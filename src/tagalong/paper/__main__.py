"""`python -m tagalong.paper` is `tagalong` with the paper's plug-ins, in a checkout that is not installed."""

import sys

from tagalong.cli import main

from . import register

if __name__ == "__main__":
    register()
    sys.exit(main())
