"""`python -m services.csr`."""

import sys

from libs.common.service.run_process import run_process
from services.csr.service import CSR_DEFINITION

if __name__ == "__main__":
    sys.exit(run_process(CSR_DEFINITION))
