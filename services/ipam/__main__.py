"""`python -m services.ipam`."""

import sys

from libs.common.service.run_process import run_process
from services.ipam.service import IPAM_DEFINITION

if __name__ == "__main__":
    sys.exit(run_process(IPAM_DEFINITION))
