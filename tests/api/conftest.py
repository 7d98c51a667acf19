# A script without doctests. It needs griffe; if that is not installed, the tests are skipped.
collect_ignore = ["snapshot.py"]
