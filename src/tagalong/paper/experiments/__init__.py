"""One small file per experiment, each with a `run` that gives a `Report`."""
