"""`python -m libs.testbed.dashboards`: write deploy/observability/dashboards anew, and the chart's copies."""

from libs.testbed.dashboards.boards import write
from libs.testbed.helm.observed import COPIES, observed_files, surplus

if __name__ == "__main__":
    write()
    for name, text in observed_files().items():
        (COPIES / name).write_text(text)
    for stale in surplus():
        stale.unlink()
