# slipstream: `make help` lists what there is. Everything is set up in .venv; a second run starts in seconds.
#
# PYTHON       the interpreter to build .venv from (3.11 to 3.13)
# TORCH_INDEX  where to take torch from, e.g. https://download.pytorch.org/whl/cpu for a CPU-only one

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow test-clients check bench plan-check plan-fit test-gpu clean

PYTHON ?= python3
TORCH_INDEX ?=
TEST_WORKERS ?= 2
CLIENTS ?= .venv/clients
BIN := .venv/bin
TORCH := $(shell sed -n 's/^ *"\(torch[^"]*\)".*/\1/p' pyproject.toml)

# pip in a few lines: each download with its size, then what was installed; errors are on stderr as ever.
PIP := $(BIN)/python -m pip install --disable-pip-version-check --no-input --progress-bar off
BRIEFLY := | awk '/Downloading|Building|Installing|Successfully/ { print substr($$0, 1, 160); fflush() }'

help: ## this list
	@awk -F ': .*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: .venv/.stamp ## .venv with slipstream and all it needs

.venv/.stamp: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
	  || { echo "slipstream needs Python 3.11 to 3.13: make PYTHON=python3.12 ..." >&2; exit 1; }
	@test -x $(BIN)/python || { echo "setup: creating .venv"; $(PYTHON) -m venv .venv; }
ifneq ($(TORCH_INDEX),)
	@echo "setup: $(TORCH) from $(TORCH_INDEX)"
	@$(PIP) "$(TORCH)" --index-url $(TORCH_INDEX) $(BRIEFLY)
endif
	@echo "setup: installing slipstream[dev,serve,train] into .venv"
	@$(PIP) --editable '.[dev,serve,train]' $(BRIEFLY)
	@touch $@

demo: setup ## a real model answers, plain and speculatively (the first run downloads it)
	$(BIN)/slipstream demo

test: setup ## the tests that need neither a GPU nor real prompts
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(TEST_WORKERS) --dist worksteal

test-slow: setup ## big comparisons and timing ratios; prompts from SLIPSTREAM_PROMPTS
	$(BIN)/pytest -m slow -n 0 -s --timeout=0

test-clients: setup ## lm-eval and aiperf against a server; installs 2 GB beside .venv
	@test -x $(CLIENTS)/lm-eval/bin/lm_eval || { $(PYTHON) -m venv $(CLIENTS)/lm-eval; \
	  $(CLIENTS)/lm-eval/bin/python -m pip install --quiet 'lm-eval[api]==0.4.13' transformers; }
	@test -x $(CLIENTS)/aiperf/bin/aiperf || { $(PYTHON) -m venv $(CLIENTS)/aiperf; \
	  $(CLIENTS)/aiperf/bin/python -m pip install --quiet 'aiperf==0.13.0'; }
	SLIPSTREAM_CLIENTS=$(abspath $(CLIENTS)) $(BIN)/pytest -m clients -n 0 -s --timeout=0

test-gpu: ## the tests for one and more GPUs, with PYTHON's own torch
	$(PYTHON) -m pytest -o addopts= --import-mode=importlib -m "gpu or multigpu"

check: setup ## lint, format, types, imports, sizes
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/basedpyright
	$(BIN)/lint-imports
	$(BIN)/python tools/sizes.py

bench: setup ## plain and speculative decoding timed on this machine's CPU
	$(BIN)/slipstream bench cpu

plan-check: setup ## the planner against published numbers, each source predicted from the others; POINTS=FILE CURVES=FILE
	$(BIN)/python -m tools.plan_check $(if $(POINTS),--points '$(POINTS)') $(if $(CURVES),--curves '$(CURVES)')

plan-fit: setup ## the same, and store the fit to everything that the planner ships
	$(BIN)/python -m tools.plan_check --write

clean: ## remove .venv and every cache
	rm -rf .venv build dist .cache .hypothesis .import_linter_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
