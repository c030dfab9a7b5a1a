"""`python -m services.watcher`."""

import sys

from libs.common.service.run_process import run_process
from services.watcher.service import WATCHER_DEFINITION

if __name__ == "__main__":
    sys.exit(run_process(WATCHER_DEFINITION))
