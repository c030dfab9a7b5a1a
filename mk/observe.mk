.PHONY: metrics-page test-observe
metrics-page: env ## write docs/metrics.md from the code
	@$(BIN)/python -m tools.metrics_page

test-observe: testbed ## alerts and dashboards by a real Prometheus, which is Debian's or PROMETHEUS=/path
	@$(BIN)/python -m libs.testbed.prometheus >/dev/null
	@$(BIN)/python -m libs.testbed.control_plane.build >/dev/null
	@$(BIN)/pytest -q --numprocesses=auto --dist=loadfile --no-loadscope-reorder tests/observe $(ARGS)
