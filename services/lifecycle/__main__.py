"""`python -m services.lifecycle`."""

import sys

from libs.common.service.run_process import run_process
from services.lifecycle.service import LIFECYCLE_DEFINITION

if __name__ == "__main__":
    sys.exit(run_process(LIFECYCLE_DEFINITION))
