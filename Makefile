PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# The demo has an environment of its own, without the tools of developers.
DEMO_VENV := .venv-demo
DEMO_READY := $(DEMO_VENV)/.seconds
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# One thread, since the threads of two workers would wait for each other. Bytecode is kept even if the environment
# disables it, or every process that a test starts would compile the package again.
TEST_ENV := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=

.PHONY: help demo test slow versions lint format bench screenshot pictures docs clean
help:
	@echo "make demo        find the best networks for a health survey (less than two minutes, and the install)"
	@echo "make test        run all tests but slow ones; the first call installs everything into $(VENV)"
	@echo "make slow        run the slow tests: whole experiments, rates of errors, browsers, killed processes"
	@echo "make versions    run all tests with Python 3.10, with 3.13, and with the oldest dependencies"
	@echo "make lint        run ruff, mypy --strict on src, and the checks of imports"
	@echo "make format      format the code with ruff"
	@echo "make bench       run the benchmarks (takes minutes)"
	@echo "make screenshot  run the three demos, and update their pages, the sample report and all pictures"
	@echo "make pictures    update only the pictures, from the existing report, and the outputs of the notebook"
	@echo "make docs        build the documentation in site/, without network access"
	@echo "make clean       remove $(VENV), $(DEMO_VENV), site and caches"

# The stamp is written last, so an interrupted install is repeated and a finished one is not.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP_INSTALL) --editable ".[dev]"
	@touch $@

# The stamp holds the seconds that the install took.
$(DEMO_READY): pyproject.toml constraints.txt
	@echo "installing what the demo needs into $(DEMO_VENV)"
	@began=$$(date +%s) && $(PYTHON) -m venv $(DEMO_VENV) && $(DEMO_VENV)/bin/python $(PIP_INSTALL) --editable ".[demo]" \
	  && echo $$(($$(date +%s) - began)) > $@

# One thread: these networks are so small that a second one would mostly wait for the first.
demo: $(DEMO_READY)
	@began=$$(date +%s) && OMP_NUM_THREADS=1 $(DEMO_VENV)/bin/tagalong demo \
	  && echo "installed in $$(cat $(DEMO_READY)) s, ran in $$(($$(date +%s) - began)) s"

# With worksteal, a worker keeps the tests of a file together, so networks that they share are trained once.
test: $(READY)
	$(TEST_ENV) $(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

slow: $(READY)
	$(TEST_ENV) $(BIN)/python -m pytest -n 2 --dist worksteal -m slow

# Other versions of Python, and the oldest dependencies that pyproject.toml allows.
versions:
	.ci/versions

lint: $(READY)
	$(BIN)/ruff check --no-cache .  # the cache gives stale import orders after a module has moved
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache  # layers and doors: see pyproject.toml

format: $(READY)
	$(BIN)/ruff check --no-cache --fix .
	$(BIN)/ruff format .

bench: $(READY)
	$(BIN)/python benchmarks/measure_cost.py
	$(BIN)/python benchmarks/select_speed.py
	$(BIN)/python benchmarks/report_speed.py
	$(BIN)/python benchmarks/many_networks.py
	$(BIN)/python benchmarks/step_cost.py
	$(BIN)/python benchmarks/verdict_rates.py
	$(BIN)/python benchmarks/datasets_as_tasks.py --steps 0 --pretraining 5
	$(BIN)/python benchmarks/summary.py

# The demos train for several minutes, or use the networks of an earlier run in runs/. One of them needs qm9pack.
screenshot: $(READY)
	$(BIN)/python $(PIP_INSTALL) --editable ".[molecules]"
	$(BIN)/python docs/demos.py
	$(BIN)/tagalong report runs/demo-nhanes --out docs/sample_report.html
	$(MAKE) pictures

pictures: $(READY)
	$(BIN)/python docs/images/screenshot.py docs/sample_report.html docs/images/report.png
	$(BIN)/python docs/images/screenshot.py docs/sample_report.html docs/images/time.png time
	$(BIN)/python docs/images/notebook.py

# Without --quiet, which would ignore broken links. The theme's end-of-life notice is silenced; see pyproject.toml.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir site
	@echo "site/index.html"

clean:
	rm -rf $(VENV) $(DEMO_VENV) site .pytest_cache .mypy_cache .ruff_cache .hypothesis
