"""`python -m services.csr`."""

import sys

from libs.common.process.run import run_process
from services.csr.service import CSR_RUN

if __name__ == "__main__":
    sys.exit(run_process(CSR_RUN))
