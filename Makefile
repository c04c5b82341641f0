# Two commands for a fresh machine: `make sync` and `make test`. Each sets up what it needs in .venv.
PYTHON ?= python3.12
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
PIP := $(BIN)/python -m pip --disable-pip-version-check
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile

.PHONY: sync check test e2e e2e-long verify verify-sim sim-2.13 lint bench bench-engine clean

$(STAMP)-tool: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --editable .
	touch $@

$(STAMP)-test: $(STAMP)-tool
	$(PIP) install --quiet --editable '.[dev,proof,engine]'
	touch $@

sync: $(STAMP)-tool
	$(BIN)/porter sync

check: $(STAMP)-tool
	$(BIN)/porter check

test: $(STAMP)-test
	$(BIN)/porter check
	$(PYTEST) --ignore-glob 'tests/e2e/test_[!cd]*' $(TESTS)

# The engine end to end on a tiny checkpoint, the whole of it: `make test` has the checkpoint's tests and the demo's.
e2e: $(STAMP)-test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/e2e

# What takes many minutes each: 200 requests and each of them alone; the decode step as a functional graph.
e2e-long: $(STAMP)-test
	PORTER_SOAK=1 PORTER_GRAPHS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -s tests/e2e/test_soak.py tests/e2e/test_graph.py

# Upstream's own kernel tests on the emitted backend.
verify: $(STAMP)-test
	$(BIN)/porter verify --jobs $(JOBS)

# The same on the simulated device, with its findings and costs.
verify-sim: $(STAMP)-test
	$(BIN)/porter verify --device sim --jobs $(JOBS)

# The simulated device on the torch release before, in an environment of its own.
sim-2.13:
	test -x .venv-2.13/bin/python || $(PYTHON) -m venv .venv-2.13
	.venv-2.13/bin/python -m pip --disable-pip-version-check install --quiet 'torch==2.13.*' numpy pytest
	PYTHONPATH=. OMP_NUM_THREADS=1 .venv-2.13/bin/python -m pytest -p no:cacheprovider tests/sim/test_sim_cases.py

lint: $(STAMP)-test
	$(BIN)/ruff check porter overrides tests benchmarks
	$(BIN)/black --check --quiet porter overrides tests benchmarks
	$(BIN)/mypy

bench: $(STAMP)-test
	$(BIN)/python benchmarks/analysis.py
	$(BIN)/python benchmarks/kernels.py
	$(BIN)/python benchmarks/vendor.py

# The engine's speed, memory and dispatched operators on the tiny checkpoint.
bench-engine: $(STAMP)-test
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/engine.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
