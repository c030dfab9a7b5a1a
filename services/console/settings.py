"""Settings of console."""

from typing import Annotated, Final

import msgspec

from libs.common.contract.ip_addresses import parse_ip
from libs.common.contract.services import CONSOLE_PORT, LEASE_NAMESPACE
from libs.common.settings import flags
from services.console.core.trace_links import find_template_problem

_LOCAL_NAME: Final = "localhost"


class ConsoleSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of console."""

    console: Annotated[
        bool,
        flags.Flag(
            "console",
            "Serve the live console in the process of all services. A process of console alone always serves "
            "it.",
            flags.CONSOLE,
        ),
    ] = False
    port: Annotated[
        int,
        flags.Flag(
            "console-port",
            "Port of the live console. 0 = any free port.",
            flags.CONSOLE,
            at_least=0,
            at_most=65535,
        ),
    ] = CONSOLE_PORT
    address: Annotated[
        str,
        flags.Flag(
            "console-address",
            "Loopback address of the live console. Whoever reaches it may read the state of all Nodes. For "
            "access from elsewhere: kubectl port-forward.",
            flags.CONSOLE,
        ),
    ] = "127.0.0.1"
    namespace: Annotated[
        str,
        flags.Flag(
            "console-namespace",
            "Namespace of the pods, for the commands that the live console suggests.",
            flags.CONSOLE,
        ),
    ] = LEASE_NAMESPACE
    trace_url_template: Annotated[
        str,
        flags.Flag(
            "trace-url-template",
            "Link to the traces of a Node: an http or https URL with {node} in place of its name.",
            flags.CONSOLE,
        ),
    ] = ""

    def problems(self) -> tuple[str, ...]:
        """Return the invalid settings."""
        found = []
        address = parse_ip(self.address)
        if self.address != _LOCAL_NAME and (address is None or not address.is_loopback):
            found.append(
                f"--console-address is {self.address!r}, which is no loopback address: the console has no "
                "authentication. Use kubectl port-forward"
            )
        if problem := find_template_problem(self.trace_url_template):
            found.append(f"--trace-url-template {problem}")
        return tuple(found)
