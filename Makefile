PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Threads of one worker would wait for those of the other. Without bytecode, every process that a test starts compiles
# the package anew. Workers that steal keep the tests of a file together, and so train what they share once.
TESTING := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=

.PHONY: help demo test versions lint format bench screenshot pictures docs clean
help:
	@echo "make demo        everything on a health survey: measure, group, train, compare (about two minutes)"
	@echo "make test        install into $(VENV) if needed, run all tests"
	@echo "make versions    the same with Python 3.10, with 3.13, and with the oldest dependencies"
	@echo "make lint        ruff, ruff format --check, mypy --strict on src, layers and doors"
	@echo "make format      let ruff rewrite the code"
	@echo "make bench       run the benchmarks (minutes)"
	@echo "make screenshot  the demo's report and its pictures for README and documentation"
	@echo "make docs        the documentation as a site in site/, without network"
	@echo "make clean       remove $(VENV), site and caches"

# A stamp written last: an interrupted install is done again, a finished one never.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	@touch $@

demo: $(READY)
	$(BIN)/tagalong demo

test: $(READY)
	$(TESTING) $(BIN)/python -m pytest -n 2 --dist worksteal

# Other versions of Python, and the oldest dependencies that pyproject.toml allows.
versions:
	.ci/versions

lint: $(READY)
	$(BIN)/ruff check --no-cache .  # a module that has moved leaves the order of imports of its users stale in the cache
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache  # layers and doors, see pyproject.toml

format: $(READY)
	$(BIN)/ruff check --no-cache --fix .
	$(BIN)/ruff format .

bench: $(READY)
	$(BIN)/python benchmarks/measure_cost.py
	$(BIN)/python benchmarks/select_speed.py
	$(BIN)/python benchmarks/report_speed.py
	$(BIN)/python benchmarks/many_networks.py
	$(BIN)/python benchmarks/verdict_rates.py
	$(BIN)/python benchmarks/celeba_reading.py
	$(BIN)/python benchmarks/lookahead_precision.py --faces 3000 --pixels 12 --epochs 2 --batches 8
	$(BIN)/python benchmarks/house.py

# The demo trains for a minute or so, or uses what it trained before.
screenshot: $(READY)
	$(BIN)/tagalong demo --fast --quiet
	$(BIN)/tagalong report runs/demo-nhanes-fast --out docs/sample_report.html
	$(MAKE) pictures

# Of the report that is there.
pictures: $(READY)
	$(BIN)/python docs/images/screenshot.py docs/sample_report.html docs/images/report.png
	for part in affinity time budget worth; do \
	  $(BIN)/python docs/images/screenshot.py docs/sample_report.html docs/images/$$part.png $$part || exit; done

# Not --quiet, which would let broken links pass. What the theme says of its end is in pyproject.toml.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir site
	@echo "site/index.html"

clean:
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache .hypothesis
