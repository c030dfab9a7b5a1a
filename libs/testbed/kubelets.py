"""Nodes that join as kubelets do: with a node's identity, under the Node authorizer and NodeRestriction."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ipaddress
import ssl
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, NamedTuple, Protocol

import aiohttp
import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from libs.testbed.kubelet_node import Kubelet, first_node, heartbeat_status, lease, ready_status

__all__ = ["Answer", "ApiServer", "Kubelet", "Kubelets", "Refused"]

JSON = "application/json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"

_NODES = "/api/v1/nodes"
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
_TIMEOUT = aiohttp.ClientTimeout(total=60)


class ApiServer(Protocol):
    """What ControlPlane and SimApiServer are here."""

    server: str

    def ssl_context(self) -> ssl.SSLContext:
        """An admin's identity; it must be allowed to impersonate nodes."""
        ...


class Answer(NamedTuple):
    """An HTTP status and the decoded body."""

    status: int
    body: Any


class Refused(RuntimeError):
    """The apiserver said no to what a kubelet must be able to do."""

    def __init__(self, what: str, answer: Answer) -> None:
        self.answer = answer
        super().__init__(f"{what}: {answer.status} {answer.body.get('message', answer.body)}")


class Kubelets:
    """Any number of kubelets over one connection pool, at most `concurrency` requests at a time."""

    def __init__(self, session: aiohttp.ClientSession, server: str) -> None:
        self._session = session
        self._server = server

    @classmethod
    @contextlib.asynccontextmanager
    async def start(cls, api: ApiServer, *, concurrency: int = 64) -> AsyncIterator[Kubelets]:
        """Impersonate nodes at this apiserver, as its admin."""
        connector = aiohttp.TCPConnector(ssl=api.ssl_context(), limit=concurrency)
        async with aiohttp.ClientSession(connector=connector, timeout=_TIMEOUT) as session:
            yield cls(session, api.server)

    async def join(self, kubelet: Kubelet) -> Any:
        """Create the Node (not ready, tainted), then make it Ready; returns the Node. Raises Refused."""
        now = datetime.now(UTC)
        created = await self.request("POST", _NODES, as_node=kubelet.name, body=first_node(kubelet, now))
        if created.status != HTTPStatus.CREATED:
            raise Refused(f"node {kubelet.name} may not join", created)
        return await self._report(kubelet.name, ready_status(now))

    async def join_all(self, kubelets: Iterable[Kubelet]) -> list[Any]:
        """Join all of them at once; the first refusal ends it."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.join(kubelet)) for kubelet in kubelets]
        return [task.result() for task in tasks]

    async def heartbeat(self, name: str) -> None:
        """Report the conditions with a new time, and renew the node's Lease."""
        now = datetime.now(UTC)
        await self._report(name, heartbeat_status(now))
        wanted = lease(name, now)
        renewed = await self.request(
            "PATCH", f"{_LEASES}/{name}", as_node=name, body=wanted, content_type=MERGE
        )
        if renewed.status == HTTPStatus.NOT_FOUND:
            renewed = await self.request("POST", _LEASES, as_node=name, body=wanted)
        if renewed.status not in {HTTPStatus.OK, HTTPStatus.CREATED}:
            raise Refused(f"node {name} may not renew its lease", renewed)

    async def ask_for_certificate(
        self,
        kubelet: Kubelet,
        *,
        ips: Sequence[str] | None = None,
        dns: Sequence[str] | None = None,
        common_name: str | None = None,
    ) -> str:
        """File a kubelet-serving CSR, return its name. None = what a kubelet asks for: its IPs, its name."""
        request = _csr_pem(
            common_name=f"system:node:{kubelet.name}" if common_name is None else common_name,
            dns=[kubelet.name] if dns is None else dns,
            ips=kubelet.ips if ips is None else ips,
        )
        body = {
            "apiVersion": "certificates.k8s.io/v1",
            "kind": "CertificateSigningRequest",
            "metadata": {"generateName": "csr-"},
            "spec": {
                "request": base64.b64encode(request).decode(),
                "signerName": "kubernetes.io/kubelet-serving",
                "usages": ["digital signature", "server auth"],
            },
        }
        filed = await self.request("POST", _CSRS, as_node=kubelet.name, body=body)
        if filed.status != HTTPStatus.CREATED:
            raise Refused(f"node {kubelet.name} may not ask for a certificate", filed)
        return str(filed.body["metadata"]["name"])

    async def delete(self, name: str) -> None:
        """Delete the Node, as an admin does; it is no error if it is gone already."""
        deleted = await self.request("DELETE", f"{_NODES}/{name}")
        if deleted.status not in {HTTPStatus.OK, HTTPStatus.NOT_FOUND}:
            raise Refused(f"deleting node {name}", deleted)

    async def request(
        self,
        method: str,
        path: str,
        *,
        as_node: str | None = None,
        body: Any = None,
        content_type: str = JSON,
    ) -> Answer:
        """One request, as this node or else as admin. Whatever the status, it is returned."""
        headers = [("Content-Type", content_type), ("Accept", JSON)]
        if as_node is not None:
            headers.append(("Impersonate-User", f"system:node:{as_node}"))
            headers += [("Impersonate-Group", group) for group in ("system:nodes", "system:authenticated")]
        data = None if body is None else msgspec.json.encode(body)
        async with self._session.request(method, self._server + path, data=data, headers=headers) as answer:
            text = await answer.read()
        if "json" in answer.headers.get("Content-Type", ""):
            return Answer(answer.status, msgspec.json.decode(text))
        return Answer(answer.status, {"message": text.decode(errors="replace")})

    async def _report(self, name: str, status: Mapping[str, Any]) -> Any:
        path, body = f"{_NODES}/{name}/status", {"status": status}
        answer = await self.request("PATCH", path, as_node=name, body=body, content_type=STRATEGIC)
        if answer.status != HTTPStatus.OK:
            raise Refused(f"node {name} may not report its status", answer)
        return answer.body


def _csr_pem(*, common_name: str, dns: Sequence[str], ips: Sequence[str]) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:nodes"),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in dns]
    names += [x509.IPAddress(ipaddress.ip_address(ip)) for ip in ips]
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
