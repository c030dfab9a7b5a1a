"""A hostile machine: its kubelet's identity, and what its Talos answers."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from libs.common.contract.machine import PlatformMetadata
from libs.testbed.kubelet_node import build_registered_node
from libs.testbed.kubelets import MERGE, SimKubelet
from libs.testbed.machine_fleet import Address, SimMachineFacts
from tests.csr_actors import TwinNode
from tests.csr_cases import CASES, CsrCase
from tests.integration.csr_cluster import file_case, machine_of
from tests.integration.hostile.attacked_cluster import NODES, AttackedCluster

FIRST_NUMBER = 20  # of TwinNode
BY_NAME = {case.name: case for case in CASES}


@dataclass(frozen=True, kw_only=True)
class Attacker:
    """Node, kubelet and machine of one attempt."""

    cluster: AttackedCluster
    twin: TwinNode

    @property
    def name(self) -> str:
        return self.twin.name

    @property
    def ip(self) -> str:
        return self.twin.ips[0]

    @property
    def kubelet(self) -> SimKubelet:
        """Its kubelet without lies."""
        return SimKubelet(name=self.name, ips=self.twin.ips)

    @property
    def path(self) -> str:
        """The API path of its Node."""
        return f"{NODES}/{self.name}"

    @property
    def machine(self) -> SimMachineFacts:
        """Its machine without lies."""
        return machine_of(self.twin.facts(), self.twin.ips)

    def platform(self, **fields: Any) -> PlatformMetadata:
        """What its cloud reports, with these lies."""
        honest = self.machine.platform
        assert honest is not None
        return msgspec.structs.replace(honest, **fields)

    def with_addresses(self, *addresses: str, link: str = "eth0") -> tuple[Address, ...]:
        """Its own addresses and these."""
        return (*self.machine.addresses, *(Address(address=each, link=link) for each in addresses))

    async def join(self, *, machine: dict[str, Any] | None = None, **kubelet: Any) -> None:
        """Start the machine with these lies; the kubelet with these flags registers its Node."""
        await self.cluster.cluster.put_machines(msgspec.structs.replace(self.machine, **(machine or {})))
        await self.register(**kubelet)

    async def register(self, **kubelet: Any) -> None:
        """Register the Node. Raises RequestRejected."""
        await self.cluster.kubelets.join(msgspec.structs.replace(self.kubelet, **kubelet))

    async def register_with_spec(self, spec: dict[str, Any]) -> None:
        """Start the honest machine, and register a Node whose spec has these fields as well."""
        await self.cluster.cluster.put_machines(self.machine)
        body = build_registered_node(self.kubelet, datetime.now(UTC))
        body["spec"] |= spec
        await self.cluster.kubelets.send("POST", NODES, as_node=self.name, body=body)

    async def request(self, method: str, path: str, body: Any = None, content_type: str = MERGE) -> int:
        """The status of a request with the kubelet's identity."""
        answer = await self.cluster.kubelets.request(
            method, path, as_node=self.name, body=body, content_type=content_type
        )
        return answer.status

    async def write(self, body: dict[str, Any], subresource: str = "") -> int:
        """The status of a change of its own Node."""
        return await self.request("PATCH", self.path + subresource, body)

    async def request_certificate(self, **fields: Any) -> str:
        """File a request as `KubeletFleet.request_certificate`; its name."""
        name = await self.cluster.kubelets.request_certificate(self.kubelet, **fields)
        self.cluster.requests.append(name)
        return name

    async def gets_its_own_certificate(self) -> None:
        """File an honest request and wait until it is issued."""
        request = await self.cluster.kubelets.request_certificate(self.kubelet)
        assert (await self.cluster.kubelets.wait_for_outcome(request)).certificate

    async def file_case(self, name: str) -> tuple[CsrCase, str]:
        """File the request of that case; "" if the API server rejects it, as the case expects."""
        case = self.twin.adapt_case(BY_NAME[name])
        filed = await file_case(self.cluster.kubelets, case)
        self.cluster.requests += [filed] if filed else []
        return case, filed

    async def is_denied(self, request: str, text: str) -> None:
        """Wait until csr denies the request for that reason."""
        outcome = await self.cluster.kubelets.wait_for_outcome(request)
        assert text in outcome.conditions["Denied"]["message"], outcome
        assert not outcome.certificate

    async def still_waits(self, request: str, text: str) -> None:
        """Wait until csr reports that reason for waiting."""
        await self.cluster.wait_for_decision("csr", "csr", request, text)
