# Everything a newcomer needs: `make demo` and `make test`. Both create .venv and install into it when needed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test lint types tests results clean

demo: $(VENV)/.installed  ## the main job: drawn beetles in four tasks, offline, on a CPU
	$(BIN)/caprompt run

test: lint types tests  ## lint, types and tests

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/.installed-dev
	$(BIN)/mypy

tests: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses auto --dist worksteal

results: $(VENV)/.installed  ## docs/results.md and docs/performance.md from the files in results/
	$(BIN)/python tools/results_page.py
	$(BIN)/python tools/performance_page.py

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
