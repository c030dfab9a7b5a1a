FAULTS ?= 2

.PHONY: model
model: env ## search the models of the hand-over and of an approval with two faults, for minutes (FAULTS=1)
	@$(BIN)/python -m tests.model $(FAULTS)
