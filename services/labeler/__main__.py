"""`python -m services.labeler`."""

import sys

from libs.common.process.run import run_process
from services.labeler.service import LABELER_RUN

if __name__ == "__main__":
    sys.exit(run_process(LABELER_RUN))
