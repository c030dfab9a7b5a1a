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
