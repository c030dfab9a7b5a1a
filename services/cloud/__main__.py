"""`python -m services.cloud`."""

import sys

from libs.common.service.run_process import run_process
from services.cloud.service import CLOUD_DEFINITION, require_one_account

if __name__ == "__main__":
    sys.exit(run_process(CLOUD_DEFINITION, conflicts=require_one_account))
