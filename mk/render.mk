.PHONY: render-samples
render-samples: env ## write what follows the platform table: the samples of `talos-ccm render`, a table of the docs
	@$(BIN)/python -m tools.platform_samples
