"""Grafana dashboards, declared once; `make dashboards` writes them into the chart."""
