"""`python -m tools.dashboards`: write deploy/observability/dashboards, and the chart's copies."""

from libs.testbed.helm.observability_copies import COPIES
from tools.dashboards.boards import FOLDER, write_boards

if __name__ == "__main__":
    for folder in (FOLDER, COPIES / FOLDER.name):
        write_boards(folder)
