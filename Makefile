# Each target sets up what it needs by itself, in $(VENV), with Python 3.11 or newer as the only thing expected.
#
#   VENV         where the environment lives                                    (.venv)
#   PYTHON       the interpreter that makes it                                  (python3.11, else python3)
#   TORCH_INDEX  a package index to take torch from, besides pip's own: set it to PyTorch's CPU index on a machine
#                without a GPU whose pip would otherwise bring the CUDA build   (unset)
#   MODEL        the stock model that the demo names                            (smollm2-135m)
#   JOBS         processes that share the tests, a file at a time               (2)

VENV ?= .venv
PYTHON ?= $(shell command -v python3.11 || command -v python3)
TORCH_INDEX ?=
MODEL ?= smollm2-135m
JOBS ?= 2
QUESTION ?= What is the capital of France, and what is it known for?

BIN := $(VENV)/bin
BRAID := $(BIN)/braid
INSTALL = $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt \
          $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
PYTEST = $(BIN)/python -m pytest
SHARED = -n $(JOBS) --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help setup demo model test coverage slow thorough reproduce lint format types contracts docs clean

help: ## say what there is (the default)
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 20

# The stamps hold the set-up of one pyproject.toml and one constraints.txt; a change to either brings it up to date.
$(VENV)/.base: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" && $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Braid needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 …" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Setting up $(VENV) (a minute or two) …"
	@$(INSTALL) -e '.[demo]'
	@touch $@

$(VENV)/.dev: $(VENV)/.base
	@echo "Adding the tools for development …"
	@$(INSTALL) -e '.[demo,tools,serve,data,train,docs,dev]'
	@touch $@

$(VENV)/.eval: $(VENV)/.dev
	@echo "Adding lm-eval, whose tasks a slow test runs …"
	@$(INSTALL) -e '.[eval]'
	@touch $@

setup: $(VENV)/.dev ## make the environment with all that development needs

demo: $(VENV)/.base ## see a model read along beside one that takes turns, on one typed problem, with both clocks
	@$(BRAID) demo
	@echo
	@echo "Try next:"
	@echo "  $(BRAID) demo \"Leo had 20 shells. He found 7 more. How many shells does Leo have?\""
	@echo "  $(BRAID) chat $(MODEL)                   # a stock chat model, which is fetched once"
	@echo "  $(BRAID) run --model $(MODEL) --topology think-aloud --user \"$(QUESTION)\" --pace 5"
	@echo "  $(BRAID) eval solve --n 300"

model: $(VENV)/.base ## fetch and convert the default model, once
	@$(BIN)/python -c "from braid.model.loading import ensure_local; ensure_local('smollm2-135m')"

test: $(VENV)/.dev model ## run the tests, those of the default model included
	$(PYTEST) $(SHARED)

coverage: $(VENV)/.dev model ## the same, and say which lines no test reaches; a third slower
	$(PYTEST) $(SHARED) --cov=braid --cov-report=term:skip-covered

slow: $(VENV)/.eval model ## run the tests that take minutes
	$(PYTEST) -m "slow and not gpu" --timeout=3600

thorough: $(VENV)/.dev model ## run the tests with three times as many examples of each costly property
	BRAID_THOROUGH=1 $(PYTEST) $(SHARED)

reproduce: $(VENV)/.dev ## train the packaged model anew and compare its figures with the shipped ones (hours; goes on)
	$(BIN)/python recipes/reproduce.py --out runs/reproduced

lint: $(VENV)/.dev ## check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.dev ## put style and formatting right where that can be done
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.dev ## check the types of src, strictly
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/pyright --pythonpath $(BIN)/python

contracts: $(VENV)/.dev ## check that imports go one way
	$(BIN)/lint-imports --no-cache

docs: $(VENV)/.dev ## build the documentation into site/
	$(BIN)/mkdocs build --strict --quiet

clean: ## remove the environment and all that was built; models stay in the cache
	rm -rf $(VENV) build dist site .coverage .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
