"""Probes the mounted Talos credential as metadata uses it: endpoints and machines."""

import asyncio
import os
from pathlib import Path
from typing import Final

import msgspec

from cli.cluster.access import find_home
from cli.inside.talos_credential import ProbeResult, TalosCredentialReport
from libs.common.clocks import utc_now
from libs.common.contract.machine import MachineFault
from libs.talos.api import MachineUnavailable, TalosApi
from libs.talos.credentials import CredentialStore
from libs.talos.talosconfig import CredentialsError, list_candidate_files
from services.metadata.machines.query_machine import query_address

_TIMEOUT_SECONDS: Final = 5.0
_MAX_ENDPOINTS: Final = 16  # limit for queried endpoints


async def probe_credential(
    node_ips: tuple[str, ...], endpoints: str, *, offline: bool = False
) -> TalosCredentialReport:
    """Return the report; `at` is read last, so that the caller can bound the pod's clock.

    `offline`: query no endpoint and no machine.
    """
    paths = list_candidate_files(os.environ, find_home())
    endpoints = endpoints or os.environ.get("TALOS_ENDPOINTS", "")
    store = CredentialStore(paths, endpoints="127.0.0.1" if offline else endpoints)
    try:
        credentials = store.current(utc_now())
    except CredentialsError as error:
        return TalosCredentialReport(at=utc_now(), problem=str(error))
    seen = TalosCredentialReport(
        at=utc_now(),
        problem=store.problem,
        source=str(credentials.source),
        roles=credentials.roles,
        not_before=credentials.not_before,
        not_after=credentials.not_after,
    )
    if offline or seen.problem:
        return seen
    named = [str(endpoint) for endpoint in credentials.endpoints][:_MAX_ENDPOINTS]
    asked = await asyncio.gather(*(_probe_endpoint(paths, one) for one in named))
    api = TalosApi(store, clock=utc_now)
    try:
        machines = await asyncio.gather(*(_probe_machine(api, one) for one in node_ips))
    finally:
        await api.close()
    return msgspec.structs.replace(seen, endpoints=tuple(asked), machines=tuple(machines), at=utc_now())


async def _probe_endpoint(paths: tuple[Path, ...], endpoint: str) -> ProbeResult:
    """Query the endpoint for its members, which every control plane answers itself."""
    api = TalosApi(CredentialStore(paths, endpoints=endpoint), clock=utc_now)
    try:
        await api.list_member_names(deadline_seconds=_TIMEOUT_SECONDS)
    except MachineUnavailable as unavailable:
        return ProbeResult(address=endpoint, fault=unavailable.fault.message)
    finally:
        await api.close()
    return ProbeResult(address=endpoint)


async def _probe_machine(api: TalosApi, node_ip: str) -> ProbeResult:
    found = await query_address(api, node_ip, parts=(), deadline_seconds=_TIMEOUT_SECONDS)
    if isinstance(found, MachineFault):
        return ProbeResult(address=node_ip, fault=found.message)
    return ProbeResult(address=node_ip, name=found.facts.node_name)
