.PHONY: threat-model
threat-model: env ## write the tables of docs/threat-model.md from the attempts of tests/integration/hostile
	@$(BIN)/python -m tests.integration.hostile.threat_tables
