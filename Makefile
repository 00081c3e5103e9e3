PYTHON ?= python3
PYTHON_NEWEST ?= python3.13
VENV := .venv
BIN := $(VENV)/bin
NEWEST := .venv-newest
RUN_DIR ?= runs/quick
TRAIN ?= quick
DOCS ?= docs/_build/html
PYTEST := $(BIN)/python -m pytest --numprocesses 2 --dist worksteal

.PHONY: help setup train check lint test test-slow test-all test-exact test-newest notebooks docs dist test-dist bench
.PHONY: gpu-dry-run clean

help:
	@echo "make train        install, then evolve a network on real Atari (RUN_DIR=$(RUN_DIR) TRAIN='$(TRAIN)')"
	@echo "make test         install, then run the quick tests"
	@echo "make test-slow    install, then run the other tests: runs of scripts and notebooks, Ray, kernels"
	@echo "make test-all     install, then run every test"
	@echo "make test-exact   compare golden runs bit by bit; play every committed lineage and every agent of the zoo"
	@echo "make test-newest  run the quick tests with $(PYTHON_NEWEST) and the newest versions of all dependencies"
	@echo "make lint         install, then check style, imports and types"
	@echo "make check        make lint and make test: before each commit"
	@echo "make notebooks    install, then run the notebooks and store their outputs"
	@echo "make docs         install, then build the documentation into $(DOCS)"
	@echo "make dist         install, then build wheel and source distribution into dist"
	@echo "make bench        install, then run the benchmarks"
	@echo "make gpu-dry-run  install, then run the GPU's benchmark at small sizes on any device"

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[docs]"
	touch $@

$(NEWEST)/.installed: pyproject.toml
	$(PYTHON_NEWEST) -m venv $(NEWEST)
	$(NEWEST)/bin/python -m pip install --quiet --upgrade --editable ".[test,sweep]"
	touch $@

# Continues the run in RUN_DIR if there is one. Exit code 130 means that Ctrl-C ended the run and that it was saved. The
# trap keeps the shell waiting for that.
train: $(VENV)/.installed
	@trap : INT; $(BIN)/python experiments/atari_ga.py $(TRAIN) --run-dir $(RUN_DIR) --resume || [ $$? -eq 130 ]

check: lint test

# Optimised tests run in processes of their own, because the others compile with other flags of XLA (tests/conftest.py).
test: $(VENV)/.installed-dev
	$(PYTEST) -m "not slow and not optimized"; a=$$?; $(PYTEST) -m "not slow and optimized" && exit $$a

# Slow tests wait for processes now and then, so three share two cores.
test-slow: $(VENV)/.installed-dev
	$(PYTEST) --numprocesses 3 -m "slow and not optimized"; a=$$?; $(PYTEST) -m "slow and optimized" && exit $$a

test-all: test test-slow

# Bits are equal only on processors like the one that recorded them.
test-exact: $(VENV)/.installed-dev
	VOLVOX_EXACT=1 VOLVOX_LINEAGES=1 $(PYTEST) tests/evolution/test_golden.py tests/learners/test_golden.py \
		tests/experiments/test_score_lineages.py tests/runs/test_zoo.py

test-newest: $(NEWEST)/.installed
	$(NEWEST)/bin/python -m pytest --numprocesses 2 --dist worksteal -m "not slow and not optimized"
	$(NEWEST)/bin/python -m pytest --numprocesses 2 --dist worksteal -m "not slow and optimized"

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/bug.yml .github/ISSUE_TEMPLATE/feature.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.readthedocs .readthedocs.yaml
	$(BIN)/check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff
	$(BIN)/zizmor --quiet --offline --pedantic .github/workflows
	$(BIN)/hadolint Dockerfile

notebooks: $(VENV)/.installed-dev
	$(BIN)/python notebooks/execute.py

docs: $(VENV)/.installed-docs
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs $(DOCS)

dist: $(VENV)/.installed-dev
	rm -rf dist
	$(BIN)/python -m build --no-isolation

# TAG is the tag of a release, "v" and the version.
test-dist: dist
	test -z "$(TAG)" || test "$(TAG)" = "v$$($(BIN)/python -c 'import volvox; print(volvox.__version__)')"
	$(PYTEST) -m slow tests/test_packaging.py

bench: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/population_forward.py
	$(BIN)/python benchmarks/population_rollout.py
	$(BIN)/python benchmarks/actor_critic.py
	$(BIN)/python benchmarks/ppo.py
	$(BIN)/python benchmarks/td3.py
	$(BIN)/python benchmarks/gradients.py

gpu-dry-run: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/gpu.py --dry-run --out runs/gpu_dry_run.json

clean:
	rm -rf $(VENV) $(NEWEST) .pytest_cache .ruff_cache .import_linter_cache
