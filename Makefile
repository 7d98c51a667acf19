PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help demo test lint format bench screenshot clean
help:
	@echo "make demo        everything on a health survey: measure, group, train, compare (about two minutes)"
	@echo "make test        install into $(VENV) if needed, run all tests"
	@echo "make lint        ruff, ruff format --check, mypy --strict on src"
	@echo "make format      let ruff rewrite the code"
	@echo "make bench       run the benchmarks (minutes)"
	@echo "make screenshot  the demo's report and its picture for the README"
	@echo "make clean       remove $(VENV) and caches"

# A stamp written last: an interrupted install is done again, a finished one never.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	@touch $@

demo: $(READY)
	$(BIN)/tagalong demo

test: $(READY)
	$(BIN)/python -m pytest -n 2

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)
	$(BIN)/python benchmarks/measure_cost.py
	$(BIN)/python benchmarks/select_speed.py
	$(BIN)/python benchmarks/report_speed.py
	$(BIN)/python benchmarks/many_networks.py
	$(BIN)/python benchmarks/verdict_rates.py
	$(BIN)/python benchmarks/celeba_reading.py

# The demo trains for a minute or so, or uses what it trained before.
screenshot: $(READY)
	$(BIN)/tagalong demo --fast --quiet
	$(BIN)/tagalong report runs/demo-nhanes-fast --out docs/sample_report.html
	$(BIN)/python docs/images/screenshot.py docs/sample_report.html docs/images/report.png

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
