"""The table of all faults."""

from collections.abc import Sequence
from typing import Final

from chaos.api_faults import API_FAULTS
from chaos.clock_faults import CLOCK_FAULTS
from chaos.cluster import Mode
from chaos.etcd_faults import ETCD_FAULTS
from chaos.fault import Fault
from chaos.link_faults import LINK_FAULTS
from chaos.machine_faults import MACHINE_FAULTS
from chaos.nats_faults import NATS_FAULTS
from chaos.process_faults import PROCESS_FAULTS
from chaos.second_installation import INSTALLATION_FAULTS
from chaos.server_faults import SERVER_FAULTS
from chaos.token_faults import TOKEN_FAULTS
from chaos.version_faults import VERSION_FAULTS
from chaos.webhook_faults import WEBHOOK_FAULTS

FAULTS: Final[Sequence[Fault]] = (
    *NATS_FAULTS,
    *SERVER_FAULTS,
    *ETCD_FAULTS,
    *API_FAULTS,
    *WEBHOOK_FAULTS,
    *TOKEN_FAULTS,
    *LINK_FAULTS,
    *PROCESS_FAULTS,
    *CLOCK_FAULTS,
    *MACHINE_FAULTS,
    *VERSION_FAULTS,
    *INSTALLATION_FAULTS,
)


def list_faults(mode: Mode) -> list[Fault]:
    """The faults that can occur in that mode."""
    return [fault for fault in FAULTS if mode in fault.modes]


def get_fault(name: str) -> Fault:
    """The fault of that name. Raises KeyError."""
    return {fault.name: fault for fault in FAULTS}[name]
