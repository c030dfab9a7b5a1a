.PHONY: cloud-config-schema cloud-config-fuzz
cloud-config-schema: env ## write the JSON Schema of the --cloud-config file again
	@$(BIN)/python -m tools.cloud_config_schema > docs/cloud-config.schema.json

MUTATIONS ?= 10000
cloud-config-fuzz: env ## parse 10,000 broken config files (MUTATIONS=...)
	@MUTATIONS=$(MUTATIONS) $(BIN)/pytest -q tests/unit/libs/common/cloud_config/test_fuzz.py

CONFIG_DECODING := tests/contract/config_decoding

.PHONY: config-decoding
config-decoding: ## decode the config cases again with the reference's decoder (needs Go)
	@cd $(CONFIG_DECODING)/generate && go run . < ../cases.json > ../decoded.json
