"""Nodes that ask for what web-1 asks for in `csr_cases`, so that no case is about another one."""

import ipaddress
from collections.abc import Callable

import msgspec

from libs.common.contract.machine import AddressStatus, MachineFacts
from tests.builders import make_facts
from tests.csr_cases import AMONG_OTHERS, WHO, CsrCase
from tests.csr_der import replace_text


class TwinNode(msgspec.Struct, frozen=True):
    """A node as web-1 is, with a name and addresses of its own, and without the lies."""

    number: int  # 20 to 250

    @property
    def name(self) -> str:
        return f"w-{self.number:03}"

    @property
    def ips(self) -> tuple[str, str]:
        return f"10.0.{self.number}.5", f"fd00:7::{self.number:x}:5"

    @property
    def public_ip(self) -> str:
        return f"198.51.100.{self.number}"

    @property
    def full_name(self) -> str:
        return f"{self.name}.example.com"

    def facts(self) -> MachineFacts:
        """What its machine attests."""
        mine = (f"{self.ips[0]}/24", f"{self.ips[1]}/64", f"{self.public_ip}/32")
        return make_facts(
            platform="aws",
            provider_id=f"aws:///eu-1/i-{self.number}",
            node_name=self.name,
            node_ip=self.ips[0],
            hostname=self.full_name,
            addresses=tuple(AddressStatus(address=address, link="eth0", flags=128) for address in mine),
        )

    def adapt_case(self, case: CsrCase) -> CsrCase:
        """The same of this node; what another than web-1 asks for stays as it is."""
        if case.username != "system:node:web-1":
            return case
        assert case.name not in AMONG_OTHERS
        return msgspec.structs.replace(
            case,
            pem=lambda: self._adapt_pem(case.pem),
            username=f"system:node:{self.name}",
            reason=case.reason.replace(WHO, self.name),
        )

    def _adapt_pem(self, pem: Callable[[], bytes]) -> bytes:
        names = {WHO: self.name, WHO.upper(): self.name.upper()}
        ips = zip(("10.0.0.5", "fd00:7::5", "198.51.100.5"), (*self.ips, self.public_ip), strict=True)
        instead = {was.encode(): now.encode() for was, now in names.items()}
        instead |= {WHO.encode("utf-16-be"): self.name.encode("utf-16-be")}
        instead |= {ipaddress.ip_address(was).packed: ipaddress.ip_address(now).packed for was, now in ips}
        with replace_text(instead):
            return pem()
