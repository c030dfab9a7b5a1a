# Each example of the model is up to 50 steps.
IPAM_MODEL_EXAMPLES ?= 4000

.PHONY: ipam-model
ipam-model: env ## 100,000 steps and more of pod CIDRs never given twice (IPAM_MODEL_EXAMPLES=...)
	@IPAM_MODEL_EXAMPLES=$(IPAM_MODEL_EXAMPLES) $(BIN)/pytest -q tests/unit/test_ipam_model.py
