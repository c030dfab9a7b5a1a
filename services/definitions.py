"""The parts of each service, by the names that every folder uses; flags that conflict in one process."""

from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any, Final

import msgspec

from libs.common.contract.services import CSR, SERVICE_TABLE, ServiceSpec
from libs.common.service.service import ServiceDefinition
from libs.common.settings.read_settings import ParsedSettings
from services.csr.settings import CsrSettings
from services.metadata.settings import MetadataSettings

_NO_SERVICE_NETWORKS: Final = (
    "--without-talos needs --service-cluster-ip-range: without Talos no control plane reports the Service "
    "networks, and csr approves no IP address while they are unknown"
)


def load_definitions() -> tuple[ServiceDefinition[Any], ...]:
    """Return `<NAME>_DEFINITION` of `services.<name>.service` for each service."""
    return tuple(
        getattr(import_module(f"services.{spec.service}.service"), f"{spec.service.upper()}_DEFINITION")
        for spec in SERVICE_TABLE
    )


def load_settings_types(specs: Iterable[ServiceSpec] = SERVICE_TABLE) -> dict[str, type[msgspec.Struct]]:
    """Return `<Name>Settings` of `services.<name>.settings` for each service; loads less than definitions."""
    return {
        spec.service: getattr(
            import_module(f"services.{spec.service}.settings"), f"{spec.service.capitalize()}Settings"
        )
        for spec in specs
    }


def find_conflicts(runs: Sequence[ServiceDefinition[Any]], reading: ParsedSettings) -> tuple[str, ...]:
    """Return why these services cannot run in one process with these settings, a sentence each."""
    without_talos = reading.get(MetadataSettings).without_talos
    is_known = bool(reading.get(CsrSettings).service_cluster_ip_range)
    runs_csr = any(run.spec is CSR for run in runs)
    return (_NO_SERVICE_NETWORKS,) if runs_csr and without_talos and not is_known else ()
