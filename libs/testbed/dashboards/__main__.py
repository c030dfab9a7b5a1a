"""`python -m libs.testbed.dashboards`: write deploy/observability/dashboards anew."""

from libs.testbed.dashboards.boards import write

if __name__ == "__main__":
    write()
