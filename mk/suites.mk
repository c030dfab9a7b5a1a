# Suites and searches beside `make test`; most build servers first.

.PHONY: test-deploy
test-deploy: testbed ## the chart: lint, schemas of every Kubernetes, rights, a real API server (builds helm)
	@$(BIN)/python -m libs.testbed.control_plane.build
	@$(BIN)/pytest -q --numprocesses=auto --dist=loadfile --no-loadscope-reorder tests/deploy $(ARGS)

.PHONY: test-browser
test-browser: testbed ## the page of the live console in a real Chromium, which is Debian's or CHROMIUM=/path
	@$(BIN)/python -m tests.console.browser.chromium
	@$(BIN)/pytest -q --numprocesses=auto --dist=loadfile --no-loadscope-reorder tests/console/browser $(ARGS)

.PHONY: test-observe
test-observe: testbed ## alerts and dashboards by a real Prometheus, which is Debian's or on PATH
	@$(BIN)/python -m libs.testbed.prometheus >/dev/null
	@$(BIN)/python -m libs.testbed.control_plane.build >/dev/null
	@$(BIN)/pytest -q --numprocesses=auto --dist=loadfile --no-loadscope-reorder tests/observe $(ARGS)

.PHONY: test-real-talos
test-real-talos: testbed ## our client against Talos's own API server, built from source (Linux; root or user namespaces)
	@$(BIN)/python -m libs.testbed.control_plane.build --talos-front
	@$(BIN)/pytest -q --numprocesses=auto --dist=loadfile --no-loadscope-reorder tests/real/talos $(ARGS)

.PHONY: test-real-openstack
test-real-openstack: env ## load balancers and routes against Octavia and Neutron, installed from PyPI (220 MB)
	@$(BIN)/python -m libs.testbed.clouds.openstack_services.installation >/dev/null
	@$(BIN)/pytest -q tests/real/openstack $(ARGS)

# The other targets run on the oldest supported Python, or on that of the machine.
NEWEST_NAME := python3.13
# A shim of pyenv exists without its Python, so each candidate has to run.
NEWEST ?= $(firstword $(shell for each in $(NEWEST_NAME) ~/.pyenv/versions/*/bin/$(NEWEST_NAME); do \
  $$each -c '' 2>/dev/null && command -v $$each; done))
NEWEST_VENV := .venv-newest

.PHONY: test-newest
# What differs between versions of Python is found by comparing texts and by starting services.
test-newest: ## contract and flow tests without real servers on a newer Python (NEWEST=/path/to/python)
	@[ -n "$(NEWEST)" ] \
	  || { echo "make: no $(NEWEST_NAME) found; name one: make test-newest NEWEST=/path/to/$(NEWEST_NAME)" >&2; exit 1; }
	@$(MAKE) --no-print-directory env VENV=$(NEWEST_VENV) PYTHON=$(NEWEST)
	@$(NEWEST_VENV)/bin/pytest --quiet --numprocesses=logical --dist=loadfile --hypothesis-profile=fast \
	  -m 'not real_servers' tests/contract tests/flow $(ARGS)

.PHONY: bench
bench: testbed ## speed and cost on the real control plane (ARGS="--help")
	@$(BIN)/python -m tests.bench $(ARGS)

.PHONY: chaos
chaos: testbed ## random pairs of faults on real servers (ARGS="--runs 20 --seed 7"; ARGS="--help")
	@$(BIN)/python -m libs.testbed.control_plane.build >/dev/null
	@$(BIN)/python -m tests.chaos $(ARGS)

# atheris needs an environment of its own: no other target needs it, and it has wheels for Linux only.
FUZZ_VENV := .venv-fuzz
FUZZ_STAMP := $(FUZZ_VENV)/.made-from-lock

.PHONY: fuzz
fuzz: $(FUZZ_STAMP) ## coverage-guided search for inputs that break a parser (ARGS="--target NAME --seconds 600")
	@$(FUZZ_VENV)/bin/python -m tests.fuzz $(ARGS)

$(FUZZ_STAMP): requirements.lock requirements-fuzz.lock | env
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(FUZZ_VENV)
	@VIRTUAL_ENV=$(FUZZ_VENV) $(BIN)/uv pip sync --quiet --require-hashes requirements.lock requirements-fuzz.lock
	@touch $@

# Steps are what must have been taken in the end; an example takes up to 50.
IPAM_MODEL_STEPS ?= 100000
IPAM_MODEL_EXAMPLES ?= 5000

.PHONY: ipam-model
ipam-model: env ## no pod CIDR twice, in 100,000 steps (IPAM_MODEL_STEPS=..., IPAM_MODEL_EXAMPLES=...)
	@IPAM_MODEL_STEPS=$(IPAM_MODEL_STEPS) IPAM_MODEL_EXAMPLES=$(IPAM_MODEL_EXAMPLES) \
	  $(BIN)/pytest -q --durations=1 tests/unit/services/ipam/test_model.py

FAULTS ?= 2

.PHONY: model
model: env ## search the models of the hand-over and of an approval with two faults, for minutes (FAULTS=1)
	@$(BIN)/python -m tests.model $(FAULTS)
