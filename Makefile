# Two commands for a newcomer: `make demo` and `make test`. Both make .venv and install what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-distributed lint format bench bench-quick reproduce-quick clean

$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@

demo: $(VENV)/installed  ## FedAvg against WeCFL on 40 clients with four hidden clusters
	$(BIN)/coterie demo

test: $(VENV)/installed  ## every test that is not marked slow or distributed
	$(BIN)/python -m pytest -n 2 -m "not slow and not distributed"

$(VENV)/distributed: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --editable ".[dev,ray,flower]"
	touch $@

test-distributed: $(VENV)/distributed  ## clusters and networks of real processes, on this machine only
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "distributed and not slow" tests/distributed

lint: $(VENV)/installed  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

reproduce-quick: $(VENV)/installed  ## what the papers stand on, in small: fails where an ordering does not hold
	rm -rf build/reproduce-quick
	$(BIN)/coterie reproduce quick --check --results build/reproduce-quick

bench-quick: $(VENV)/installed  ## the papers' workloads, engine against engine and a plain loop, in under three minutes
	OMP_NUM_THREADS=1 $(BIN)/python bench/compare.py --quick

bench: $(VENV)/installed  ## the same with every peer (each in an environment of its own), then growth with clients, K and size
	OMP_NUM_THREADS=1 $(BIN)/python bench/compare.py
	OMP_NUM_THREADS=1 $(BIN)/python bench/growth.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build
