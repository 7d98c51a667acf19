"""The command line: thin commands over the public functions."""

from ._app import main as main
