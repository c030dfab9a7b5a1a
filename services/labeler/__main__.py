"""`python -m services.labeler`."""

import sys

from libs.common.service.run_process import run_process
from services.labeler.service import LABELER_DEFINITION

if __name__ == "__main__":
    sys.exit(run_process(LABELER_DEFINITION))
