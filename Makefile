# Everything a newcomer needs: `make demo` and `make test`. Both create .venv and install into it when needed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
TOOLS := build/release-tools

.PHONY: demo test lint types tests robust results docs lowest newest audit-dependencies sbom release clean

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

robust: $(VENV)/.installed-dev  ## attacks on everything, about 20 minutes on two cores; the table in docs/robustness.md
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m robust --save
	$(BIN)/python tools/robustness_page.py

results: $(VENV)/.installed  ## docs/results.md, docs/performance.md and docs/robustness.md from the files in results/
	$(BIN)/python tools/results_page.py
	$(BIN)/python tools/performance_page.py
	$(BIN)/python tools/robustness_page.py

docs: $(VENV)/.installed-dev  ## the site in site/; a warning or a broken link is an error
	$(BIN)/python tools/build_site.py

lowest newest:  ## the suite with the lowest supported (Python 3.10) or the newest released versions (Python 3.13); PYTEST='-m "not slow"' for a part
	$(PYTHON) tools/check_versions.py $@ $(if $(VERSIONS_PYTHON),--python $(VERSIONS_PYTHON)) -- --numprocesses auto --dist worksteal $(PYTEST)

audit-dependencies: $(TOOLS)/.installed  ## known vulnerabilities of the pinned versions
	$(TOOLS)/bin/python tools/audit_dependencies.py

sbom: $(TOOLS)/.installed  ## a CycloneDX bill of materials in dist/
	$(TOOLS)/bin/python tools/release.py --only sbom

release: $(TOOLS)/.installed  ## build, check and sign sdist and wheel: make release KEY=~/.ssh/id_ed25519
	$(TOOLS)/bin/python tools/release.py $(if $(KEY),--key $(KEY))

$(TOOLS)/.installed: tools/release-requirements.txt
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet --requirement tools/release-requirements.txt
	touch $@

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist site docs/reference .pytest_cache .mypy_cache .ruff_cache .hypothesis
