"""`python -m services.metadata`."""

import sys

from libs.common.process.run import run_process
from services.metadata.service import METADATA_RUN

if __name__ == "__main__":
    sys.exit(run_process(METADATA_RUN))
