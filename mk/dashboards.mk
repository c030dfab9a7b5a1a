.PHONY: dashboards
dashboards: env ## write the Grafana dashboards of the chart
	@$(BIN)/python -m tools.dashboards
