.PHONY: test-real-talos
test-real-talos: testbed ## our client against Talos's own API server, built from source (Linux; root or user namespaces)
	@$(BIN)/python -m libs.testbed.control_plane.build --talos-front
	@$(BIN)/pytest -q --numprocesses=auto --dist=loadfile --no-loadscope-reorder tests/real_talos $(ARGS)
