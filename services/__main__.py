"""`python -m services`: runs every service in one process, with one bus and one Kubernetes client."""

import sys
from collections.abc import Sequence
from typing import Any, Final

from libs.common.service.run_process import run_process
from libs.common.service.service import ServiceDefinition
from libs.common.settings.read_settings import ParsedSettings
from services.csr.service import CSR_DEFINITION
from services.csr.settings import CsrSettings
from services.definitions import load_definitions
from services.metadata.settings import MetadataSettings

_NO_SERVICE_NETWORKS: Final = (
    "--without-talos needs --service-cluster-ip-range: without Talos no control plane reports the Service "
    "networks, and csr approves no IP address while they are unknown"
)


def find_conflicts(runs: Sequence[ServiceDefinition[Any]], reading: ParsedSettings) -> tuple[str, ...]:
    """Return why these services cannot run in one process with these settings, a sentence each.

    Each alone could.
    """
    without_talos = reading.get(MetadataSettings).without_talos
    is_known = bool(reading.get(CsrSettings).service_cluster_ip_range)
    return (_NO_SERVICE_NETWORKS,) if CSR_DEFINITION in runs and without_talos and not is_known else ()


if __name__ == "__main__":
    sys.exit(run_process(*load_definitions(), program="python -m services", conflicts=find_conflicts))
