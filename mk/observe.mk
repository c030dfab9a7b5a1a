.PHONY: metrics-page
metrics-page: env ## write docs/metrics.md anew from the code
	@$(BIN)/python -m libs.testbed.metrics_page
