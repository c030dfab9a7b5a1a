"""`python -m services.watcher`."""

import sys

from libs.common.process.run import run_process
from services.watcher.service import WATCHER_RUN

if __name__ == "__main__":
    sys.exit(run_process(WATCHER_RUN))
