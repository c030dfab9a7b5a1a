"""The table of all faults."""

from collections.abc import Sequence
from typing import Final

from tests.chaos.api_faults import API_FAULTS
from tests.chaos.clock_faults import CLOCK_FAULTS
from tests.chaos.cluster import Mode
from tests.chaos.etcd_faults import ETCD_FAULTS
from tests.chaos.fault import Fault
from tests.chaos.link_faults import LINK_FAULTS
from tests.chaos.machine_faults import MACHINE_FAULTS
from tests.chaos.nats_faults import NATS_FAULTS
from tests.chaos.process_faults import PROCESS_FAULTS
from tests.chaos.second_installation import INSTALLATION_FAULTS
from tests.chaos.server_faults import SERVER_FAULTS
from tests.chaos.token_faults import TOKEN_FAULTS
from tests.chaos.webhook_faults import WEBHOOK_FAULTS

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
    *INSTALLATION_FAULTS,
)


def list_faults(mode: Mode) -> list[Fault]:
    """The faults that can occur in that mode."""
    return [fault for fault in FAULTS if mode in fault.modes]


def get_fault(name: str) -> Fault:
    """The fault of that name. Raises KeyError."""
    return {fault.name: fault for fault in FAULTS}[name]
