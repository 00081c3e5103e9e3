PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN_DIR ?= runs/quick
TRAIN ?= quick

.PHONY: help setup train test lint bench clean

help:
	@echo "make train   install, then evolve a network on real Atari (RUN_DIR=$(RUN_DIR) TRAIN='$(TRAIN)')"
	@echo "make test    install, then run the tests"
	@echo "make lint    install, then check style and types"
	@echo "make bench   install, then run the benchmarks"
	@echo "make setup   install into $(VENV)"

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

# Goes on with the run in RUN_DIR if there is one.
train: $(VENV)/.installed
	$(BIN)/python experiments/atari_ga.py $(TRAIN) --run-dir $(RUN_DIR) --resume

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal

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

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache
