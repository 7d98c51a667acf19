# A script without doctests. It needs griffe; where that is not installed, the tests skip.
collect_ignore = ["snapshot.py"]
