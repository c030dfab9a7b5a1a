"""`python -m services.ipam`."""

import sys

from libs.common.process.run import run_process
from services.ipam.service import IPAM_RUN

if __name__ == "__main__":
    sys.exit(run_process(IPAM_RUN))
