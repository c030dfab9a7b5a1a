"""Queries of Talos machines that fail as expected."""

import pytest

from libs.common.contract.machine import MachineFault
from libs.talos.api import MachineUnavailable, TalosApi


async def query_fault(api: TalosApi, node_ip: str, *, deadline_seconds: float = 5) -> MachineFault:
    """Why a look at that machine fails; the test fails if it does not."""
    with pytest.raises(MachineUnavailable) as unavailable:
        await api.fetch_facts(node_ip, deadline_seconds=deadline_seconds)
    return unavailable.value.fault
