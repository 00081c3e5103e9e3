PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN_DIR ?= runs/quick
TRAIN ?= quick

PYTEST := $(BIN)/python -m pytest --numprocesses 2 --dist worksteal
# Directories and files whose tests take seconds together.
QUICK := tests/data tests/report $(filter-out $(addprefix tests/test_,loading.py training.py tuning.py),$(wildcard tests/test_*.py))

.PHONY: help setup train check test test-all test-exact lint bench clean

help:
	@echo "make train     install, then evolve a network on real Atari (RUN_DIR=$(RUN_DIR) TRAIN='$(TRAIN)')"
	@echo "make check     install, then check style and types, and run the quick tests: before each commit"
	@echo "make test      install, then run all tests but the slow ones: before a branch is merged"
	@echo "make test-all  install, then run every test, whole runs of scripts and notebooks included: what CI runs"
	@echo "make test-exact  compare golden numbers to the last bit, and play every start of every committed lineage"
	@echo "make lint      install, then check style and types"
	@echo "make bench     install, then run the benchmarks"
	@echo "make setup     install into $(VENV)"

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

# Goes on with the run in RUN_DIR if there is one. Exit code 130 is a Ctrl-C after which the run was saved, and no
# failure. The trap makes the shell wait for that, where it would end at once.
train: $(VENV)/.installed
	@trap : INT; $(BIN)/python experiments/atari_ga.py $(TRAIN) --run-dir $(RUN_DIR) --resume || [ $$? -eq 130 ]

check: lint
	$(PYTEST) -m "not slow" $(QUICK)

test: $(VENV)/.installed-dev
	$(PYTEST) -m "not slow"

test-all: $(VENV)/.installed-dev
	$(PYTEST)

# Bits are equal on processors like the one that recorded them.
test-exact: $(VENV)/.installed-dev
	VOLVOX_EXACT=1 VOLVOX_LINEAGES=1 $(PYTEST) tests/evolution/test_golden.py tests/learners/test_golden.py \
		tests/experiments/test_score_lineages.py

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

bench: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/population_forward.py
	$(BIN)/python benchmarks/population_rollout.py
	$(BIN)/python benchmarks/actor_critic.py
	$(BIN)/python benchmarks/strategies.py --members 256
	$(BIN)/python benchmarks/novelty.py
	$(BIN)/python benchmarks/gradients.py
	$(BIN)/python benchmarks/td3.py
	$(BIN)/python benchmarks/circulant.py
	$(BIN)/python benchmarks/maze.py
	$(BIN)/python benchmarks/timeline.py
	$(BIN)/python benchmarks/first_row.py

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache
