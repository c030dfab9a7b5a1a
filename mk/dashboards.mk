.PHONY: dashboards
dashboards: env ## write the Grafana dashboards of deploy/observability/dashboards anew
	@$(BIN)/python -m libs.testbed.dashboards
