.PHONY: bench
bench: testbed ## speed and cost on the real control plane (ARGS="--help")
	@$(BIN)/python -m tests.bench $(ARGS)
