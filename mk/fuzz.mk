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
