"""`python -m services`: runs every service in one process, with one bus and one Kubernetes client."""

import sys

from libs.common.service.run_process import run_process
from services.definitions import find_conflicts, load_definitions

if __name__ == "__main__":
    sys.exit(run_process(*load_definitions(), program="python -m services", conflicts=find_conflicts))
