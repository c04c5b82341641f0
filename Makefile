# Two commands for a fresh machine: `make sync` and `make test`. Each sets up what it needs in .venv.
PYTHON ?= python3.12
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: sync check test truth platform lint bench clean

$(STAMP)-tool: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --editable .
	touch $@

$(STAMP)-test: $(STAMP)-tool
	$(PIP) install --quiet --editable '.[dev,proof]'
	touch $@

sync: $(STAMP)-tool
	$(BIN)/porter sync

check: $(STAMP)-tool
	$(BIN)/porter check

test: $(STAMP)-test
	$(BIN)/porter check
	$(BIN)/python -m pytest --ignore tests/surface/truth --ignore tests/platform --ignore tests/seams --ignore tests/verify \
		--deselect tests/surface/test_tilelang.py::test_a_release_that_nothing_was_tuned_for

# The analyzer against the imported upstream: minutes of elaboration and stub checks.
truth: $(STAMP)-test
	$(BIN)/python -m pytest tests/surface/truth

# The engine's platform and its seams: needs a C++ compiler and upstream's own requirements.
platform: $(STAMP)-test
	$(BIN)/python -m pytest tests/platform tests/seams tests/verify

lint: $(STAMP)-test
	$(BIN)/ruff check porter overrides tests benchmarks
	$(BIN)/black --check --quiet porter overrides tests benchmarks
	$(BIN)/mypy

bench: $(STAMP)-test
	$(BIN)/python benchmarks/analysis.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
