.PHONY: dashboards
dashboards: env ## write the Grafana dashboards of deploy/observability/dashboards
	@$(BIN)/python -m tools.dashboards
