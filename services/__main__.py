"""`python -m services`: every service in one process, on one bus and one client of the Kubernetes API."""

import sys

from libs.common.process.run import run_process
from services.conflicts import conflicts
from services.csr.service import CSR_RUN
from services.ipam.service import IPAM_RUN
from services.labeler.service import LABELER_RUN
from services.lifecycle.service import LIFECYCLE_RUN
from services.metadata.service import METADATA_RUN
from services.watcher.service import WATCHER_RUN

if __name__ == "__main__":
    runs = (WATCHER_RUN, METADATA_RUN, LABELER_RUN, CSR_RUN, IPAM_RUN, LIFECYCLE_RUN)
    sys.exit(run_process(*runs, program="python -m services", conflicts=conflicts))
