TALOS_SAMPLES := tests/contract/talos_samples

.PHONY: talos-samples
talos-samples: ## write the samples of Talos's bytes again (needs Go)
	@cd $(TALOS_SAMPLES)/generate && go run . -talos 1.13.5 > ../talos-1.13.json
	@cd $(TALOS_SAMPLES)/generate && go run -modfile=talos-1.11.mod -tags talos111 . -talos 1.11.6 > ../talos-1.11.json
