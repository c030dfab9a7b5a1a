# Steps are what must have been taken in the end; an example takes up to 50.
IPAM_MODEL_STEPS ?= 100000
IPAM_MODEL_EXAMPLES ?= 5000

.PHONY: ipam-model
ipam-model: env ## no pod CIDR twice, in 100,000 steps (IPAM_MODEL_STEPS=..., IPAM_MODEL_EXAMPLES=...)
	@IPAM_MODEL_STEPS=$(IPAM_MODEL_STEPS) IPAM_MODEL_EXAMPLES=$(IPAM_MODEL_EXAMPLES) \
	  $(BIN)/pytest -q --durations=1 tests/unit/services/ipam/test_model.py
