"""Finds flags that contradict each other only if several services run in one process. Pure."""

from collections.abc import Sequence
from typing import Any, Final

from libs.common.service.service import ServiceDefinition
from libs.common.settings.read_settings import ParsedSettings
from services.csr.service import CSR_DEFINITION
from services.csr.settings import CsrSettings
from services.metadata.settings import MetadataSettings

_NO_SERVICE_NETWORKS: Final = (
    "--without-talos needs --service-cluster-ip-range: without Talos no control plane reports the Service "
    "networks, and csr approves no IP address while they are unknown"
)


def find_conflicts(runs: Sequence[ServiceDefinition[Any]], reading: ParsedSettings) -> tuple[str, ...]:
    """Return why these services cannot run in one process with these settings, a sentence each."""
    without_talos = reading.get(MetadataSettings).without_talos
    is_known = bool(reading.get(CsrSettings).service_cluster_ip_range)
    return (_NO_SERVICE_NETWORKS,) if CSR_DEFINITION in runs and without_talos and not is_known else ()
