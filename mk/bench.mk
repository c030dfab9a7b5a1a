.PHONY: bench
bench: testbed ## speed and cost on the real control plane (ARGS="--help")
	@$(BIN)/python -m tests.bench $(ARGS)

.PHONY: cost-tables
cost-tables: env ## write the cost against the reference into README.md and docs/performance.md
	@$(BIN)/python -m tools.cost_tables
