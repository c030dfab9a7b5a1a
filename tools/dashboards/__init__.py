"""Grafana dashboards, declared once; `make dashboards` writes deploy/observability/dashboards."""
