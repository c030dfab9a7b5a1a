"""`python -m services.metadata`."""

import sys

from libs.common.service.run_process import run_process
from services.metadata.service import METADATA_DEFINITION

if __name__ == "__main__":
    sys.exit(run_process(METADATA_DEFINITION))
