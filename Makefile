# Two commands for a newcomer: `make demo` and `make test`. Both make .venv and install what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# The packages of .ci/lock, checked by their hashes; LOCKED=no takes the newest that fit (another Python, a mirror).
LOCKED ?= yes

.PHONY: demo test test-rest test-all test-distributed lint docs format bench bench-quick reproduce-quick coverage wheel-check fuzz audit clean

ifeq ($(LOCKED),yes)
INSTALL = .ci/lock/install $(VENV)
else
INSTALL = .ci/lock/install-newest $(VENV)
endif

$(VENV)/installed: pyproject.toml .ci/lock/dev.txt .ci/lock/torch.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) dev
	-$(BIN)/python -m pip install --quiet --no-deps byzfl  # values to compare with, without torchvision
	touch $@

demo: $(VENV)/installed  ## FedAvg, WeCFL and Halves on 40 clients with four hidden clusters
	$(BIN)/coterie demo

# Two processes with one thread each; who has nothing left to do takes over tests of the other.
SHAM := tests/devices tests/conformance/test_on_devices.py tests/network/test_client_device.py
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

# The pretend device changes PyTorch for the rest of its process, so its tests have processes of their own.
test: $(VENV)/installed  ## the tests for every day, in a few minutes
	$(PYTEST) -m "not exhaustive and not slow and not distributed"
	$(PYTEST) -m "not exhaustive and not slow" $(SHAM)

# PART=0/3 takes the slow ones and the first third of the combinations.
test-rest: $(VENV)/installed  ## what `make test` leaves out: every method on every engine, every combination
	$(PYTEST) -m "(exhaustive or slow) and not distributed" $(if $(PART),--part $(PART))
	$(PYTEST) -m "exhaustive or slow" $(if $(PART),--part $(PART)) $(SHAM)

test-all: test test-rest  ## both: every test that is not marked distributed

$(VENV)/distributed: $(VENV)/installed .ci/lock/distributed.txt
	$(INSTALL) distributed
	touch $@

test-distributed: $(VENV)/distributed  ## clusters and networks of real processes, on this machine only
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "distributed and not slow" tests/distributed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/network/test_discovery.py tests/network/test_signs_of_life.py

lint: $(VENV)/installed  ## style, types, and the layers between packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --cache-dir .mypy_cache/import_linter

docs: $(VENV)/installed  ## the documentation as a site, in build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

wheel-check: $(VENV)/installed  ## the wheel, built, installed without extras into an environment of its own, and used
	OMP_NUM_THREADS=1 $(BIN)/python .ci/wheel_check.py

coverage: $(VENV)/installed  ## which lines `make test` reaches, in build/coverage
	$(PYTEST) -m "not exhaustive and not slow and not distributed" \
		--cov --cov-report=term --cov-report=html:build/coverage

format: $(VENV)/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

reproduce-quick: $(VENV)/installed  ## what the papers stand on, in small: fails where an ordering does not hold
	rm -rf build/reproduce-quick
	$(BIN)/python -m papers quick --check --results build/reproduce-quick

bench-quick: $(VENV)/installed  ## the papers' workloads, engine against engine and a plain loop, in under three minutes
	OMP_NUM_THREADS=1 $(BIN)/python bench/compare.py --quick

bench: $(VENV)/installed  ## the same with every peer (each in an environment of its own), then growth with clients, K and size
	OMP_NUM_THREADS=1 $(BIN)/python bench/compare.py
	OMP_NUM_THREADS=1 $(BIN)/python bench/growth.py

# The seed is printed with every target; SEED=... repeats it.
SEED ?= $(shell date +%s)

fuzz: $(VENV)/installed  ## bad input to everything that reads, three seconds each: a minute in one process
	OMP_NUM_THREADS=1 $(BIN)/python fuzz/long.py --seconds 3 --cases 1000000 --seed $(SEED) --no-row

audit: $(VENV)/installed  ## known vulnerabilities of the locked packages, where their list can be reached
	.ci/audit $(VENV)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build
