"""`python -m services`: every service in one process, on one bus and one client of the Kubernetes API."""

import sys

from libs.common.service.run_process import run_process
from services.csr.service import CSR_DEFINITION
from services.flag_conflicts import find_conflicts
from services.ipam.service import IPAM_DEFINITION
from services.labeler.service import LABELER_DEFINITION
from services.lifecycle.service import LIFECYCLE_DEFINITION
from services.metadata.service import METADATA_DEFINITION
from services.watcher.service import WATCHER_DEFINITION

if __name__ == "__main__":
    runs = (
        WATCHER_DEFINITION,
        METADATA_DEFINITION,
        LABELER_DEFINITION,
        CSR_DEFINITION,
        IPAM_DEFINITION,
        LIFECYCLE_DEFINITION,
    )
    sys.exit(run_process(*runs, program="python -m services", conflicts=find_conflicts))
