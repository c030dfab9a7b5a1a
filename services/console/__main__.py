"""`python -m services.console`."""

import sys

from libs.common.service.run_process import run_process
from services.console.service import CONSOLE_DEFINITION

if __name__ == "__main__":
    sys.exit(run_process(CONSOLE_DEFINITION))
