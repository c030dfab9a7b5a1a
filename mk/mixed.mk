.PHONY: test-mixed
test-mixed: testbed ## scenarios with old and new processes mixed (OLD=<git revision>, ARGS="--sets csr-old,csr-new")
	@$(BIN)/python -m libs.testbed.control_plane.build >/dev/null
	@$(BIN)/python -m tests.mixed "$(OLD)" $(ARGS)
