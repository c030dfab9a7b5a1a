.PHONY: render-samples
render-samples: env ## write the sample nodes of `talos-ccm render` again from the testbed's platforms
	@$(BIN)/python -m tools.platform_samples > cli/render/samples.json
