"""Settings of console."""

import re
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

import msgspec

from libs.common.contract.ip_addresses import parse_ip
from libs.common.contract.services import CONSOLE_EXPOSED, CONSOLE_PORT, LEASE_NAMESPACE
from libs.common.settings import flags

_DNS_NAME: Final = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9.-]{0,251}[a-zA-Z0-9])?")


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
            "Address of the live console. Without --console-exposed a loopback address: every process that "
            "reaches it may read the state of all Nodes. For access from elsewhere: kubectl port-forward.",
            flags.CONSOLE,
        ),
    ] = "127.0.0.1"
    exposed: Annotated[
        bool,
        flags.Flag(
            CONSOLE_EXPOSED,
            "Serve the live console to other hosts: over TLS, after a login with the bearer token of a user "
            "who may list Nodes, CertificateSigningRequests and Services.",
            flags.CONSOLE,
        ),
    ] = False
    tls_cert_file: Annotated[
        Path | None,
        flags.Flag("console-tls-cert-file", "Certificate of the exposed console (PEM).", flags.CONSOLE),
    ] = None
    tls_key_file: Annotated[
        Path | None,
        flags.Flag("console-tls-key-file", "Private key of --console-tls-cert-file (PEM).", flags.CONSOLE),
    ] = None
    allowed_hosts: Annotated[
        tuple[str, ...],
        flags.Flag(
            "console-allowed-host",
            "Names or addresses by which browsers open the exposed console. Other Host headers are refused.",
            flags.CONSOLE,
        ),
    ] = ()
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
        is_loopback = self.address == "localhost" or (address is not None and address.is_loopback)
        if not is_loopback and not self.exposed:
            found.append(
                f"--console-address is {self.address!r}, which is no loopback address: the console has no "
                f"authentication without --{CONSOLE_EXPOSED}. Use kubectl port-forward"
            )
        needed = {
            "--console-tls-cert-file": self.tls_cert_file,
            "--console-tls-key-file": self.tls_key_file,
            "--console-allowed-host": self.allowed_hosts,
        }
        wrong = [flag for flag, value in needed.items() if bool(value) is not self.exposed]
        if wrong:
            only = "requires" if self.exposed else "must be set for"
            found.append(f"--{CONSOLE_EXPOSED} {only} {', '.join(wrong)}")
        found += [
            f"--console-allowed-host={host}: no host name or address, without a port"
            for host in self.allowed_hosts
            if not (_DNS_NAME.fullmatch(host) or parse_ip(host))
        ]
        template = self.trace_url_template
        if template and (urlsplit(template).scheme not in ("http", "https") or "{node}" not in template):
            found.append(f"--trace-url-template is {template!r}, which is no http or https URL with {{node}}")
        return tuple(found)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The allowed hosts as in the Host header of a browser."""
        return tuple(f"[{parse_ip(each)}]" if ":" in each else each.lower() for each in self.allowed_hosts)
