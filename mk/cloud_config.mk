.PHONY: cloud-config-schema
cloud-config-schema: env ## write the JSON Schema of the --cloud-config file again
	@$(BIN)/python -m tools.cloud_config_schema > docs/cloud-config.schema.json

CONFIG_DECODING := tests/contract/config_decoding

.PHONY: config-decoding
config-decoding: ## decode the config cases again with the reference's decoder (needs Go)
	@cd $(CONFIG_DECODING)/generate && go run . < ../cases.json > ../decoded.json
