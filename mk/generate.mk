# Files that are generated and committed: each target writes some of them again.

.PHONY: manifests
manifests: testbed ## write what follows the service table, and render the manifests of deploy/k8s again
	@$(BIN)/python -m tools.service_table
	@$(BIN)/python -m libs.testbed.helm.renders

.PHONY: metrics-page
metrics-page: env ## write docs/metrics.md from the code
	@$(BIN)/python -m tools.metrics_page

.PHONY: cloud-config-schema
cloud-config-schema: env ## write the JSON Schema of the --cloud-config file again
	@$(BIN)/python -m tools.cloud_config_schema > docs/cloud-config.schema.json

CONFIG_DECODING := tests/contract/config_decoding

.PHONY: config-decoding
config-decoding: ## decode the config cases again with the reference's decoder (needs Go)
	@cd $(CONFIG_DECODING)/generate && go run . < ../cases.json > ../decoded.json

.PHONY: interface-snapshots
interface-snapshots: env ## write the snapshots of the interface again; check that the docs are still true
	@WRITE_INTERFACE_SNAPSHOTS=1 $(BIN)/pytest -q -n0 tests/contract -k interface

.PHONY: render-samples
render-samples: env ## write what follows the platform table: the samples of `talos-ccm render`, a table of the docs
	@$(BIN)/python -m tools.platform_samples

.PHONY: threat-model
threat-model: env ## write the tables of docs/threat-model.md from the attempts of tests/integration/hostile
	@$(BIN)/python -m tests.integration.hostile.threat_tables

GO_TEMPLATES := tests/unit/libs/gotemplate/go_templates

.PHONY: go-templates
go-templates: ## write what Go's text/template makes of the template cases again (needs Go)
	@cd $(GO_TEMPLATES)/generate && go run . > ../cases.json

TALOS_SAMPLES := tests/contract/talos_samples

.PHONY: talos-samples
talos-samples: ## write the samples of Talos's bytes again (needs Go)
	@cd $(TALOS_SAMPLES)/generate && go run . -talos 1.13.5 > ../talos-1.13.json
	@cd $(TALOS_SAMPLES)/generate && go run -modfile=talos-1.11.mod -tags talos111 . -talos 1.11.6 > ../talos-1.11.json

CONSOLE_WEB := services/console/web

.PHONY: console-bundle
console-bundle: ## bundle the page of the live console again from services/console/web (needs Node.js)
	@cd $(CONSOLE_WEB) && npm ci --silent --ignore-scripts --no-audit --no-fund && npm run --silent check && npm run --silent build

.PHONY: console-types
console-types: env ## write the TypeScript types of what the console sends to its page
	@$(BIN)/python -m tools.console_types

.PHONY: console-screenshots
console-screenshots: env ## take the screenshots of the live console in docs/images again (ARGS="--help")
	@$(BIN)/python -m tests.console.browser.chromium
	@$(BIN)/python -m tests.console.browser.screenshots $(ARGS)

