"""The Talos API client: its interface, and the real one by the settings."""

import os
from collections.abc import AsyncGenerator, Collection
from datetime import datetime
from pathlib import Path
from typing import Final, Protocol

from libs.common.contract.machine import MachineFacts
from libs.common.observability import metrics, telemetry
from libs.common.service.service import Dependencies
from libs.talos.api import InventoryResponse, MachineConfigNetworks, Part, TalosApi, WatchSnapshot
from libs.talos.credentials import CredentialStore
from libs.talos.talosconfig import list_candidate_files
from services.metadata.settings import MetadataSettings

# A machine query releases its slot after a second, but may run to its deadline.
_HUNG_QUERIES_PER_SLOT: Final = 8


class TalosClient(Protocol):
    """The Talos API client: `libs.talos.api.TalosApi`, or a fake."""

    async def fetch_facts(
        self, node_ip: str, *, deadline_seconds: float, with_system: bool = True
    ) -> MachineFacts:
        """Return the facts of the machine at that address, SystemInformation only `with_system`.

        Raises MachineUnavailable.
        """

    async def fetch_inventory(
        self, node_ip: str, parts: Collection[Part], *, deadline_seconds: float
    ) -> InventoryResponse:
        """Return those parts of the machine's inventory, and a fault for each part that failed."""

    def watch_machine(
        self, node_ip: str, *, read_deadline_seconds: float
    ) -> AsyncGenerator[WatchSnapshot | None, None]:
        """Yield a snapshot once the watches are open, then None on each change.

        Raises MachineUnavailable.
        """

    async def list_member_names(self, *, deadline_seconds: float) -> frozenset[str]:
        """Return the node names of all members that discovery lists. Raises MachineUnavailable."""

    async def fetch_cluster_networks(self, *, deadline_seconds: float) -> MachineConfigNetworks:
        """Return the pod and service networks from a control plane. Raises MachineUnavailable."""

    def problem(self) -> str:
        """Return why no machine can be queried, now or soon; "" if there is no problem."""

    def certificate_expires_at(self) -> datetime | None:
        """Return when our client certificate expires; None without one."""

    async def close(self) -> None:
        """Close every connection."""


def open_talos(dependencies: Dependencies, settings: MetadataSettings) -> TalosApi:
    """Return a Talos API client by the settings. It reads and dials nothing before the first query."""
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - Path.home() raises where there is none
    paths = (settings.talosconfig,) if settings.talosconfig else list_candidate_files({}, home)
    return TalosApi(
        CredentialStore(paths, endpoints=settings.talos_endpoints),
        clock=dependencies.now,
        observe=_count_request,
        trace_headers=telemetry.outgoing_headers,
        max_concurrent_queries=settings.max_concurrent_queries * _HUNG_QUERIES_PER_SLOT,
        with_stage=settings.serves_lifecycle,
        queries_cluster_name=settings.cluster_name_fallbacks,
    )


def _count_request(request: str, seconds: float, failed: bool) -> None:
    metrics.TALOS_REQUEST_DURATION.labels(request).observe(seconds, telemetry.exemplar())
    if failed:
        metrics.TALOS_REQUEST_ERRORS.labels(request).inc()
