"""`python -m libs.testbed.dashboards`: write deploy/observability/dashboards, and the chart's copies."""

from libs.testbed.dashboards.boards import FOLDER, write_boards
from libs.testbed.helm.observability_copies import COPIES

if __name__ == "__main__":
    for folder in (FOLDER, COPIES / FOLDER.name):
        write_boards(folder)
