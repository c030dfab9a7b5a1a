"""Files the certificate requests of a run, and records which of them may be approved."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeVar

import aiohttp

from libs.common.contract.signing_request import KUBELET_SERVING, NODE_USER_PREFIX
from libs.testbed.kubelets import KubeletFleet, RequestRejected
from libs.testbed.signing_requests import CSRS, SERVING_USAGES, build_signing_request, make_request_pem
from tests.chaos.history import SigningRequest, digest_request, read_signing_request

T = TypeVar("T")
_RETRY_SECONDS: Final = 0.3
_PATIENCE_SECONDS: Final = 80.0
_FOREIGN_SIGNER: Final = "example.com/another-signer"


async def persist(what: str, send: Callable[[], Awaitable[T]]) -> T:
    """Send until it succeeds, as kubelets and operators do. Raises TimeoutError with the last error."""
    loop = asyncio.get_running_loop()
    deadline, last = loop.time() + _PATIENCE_SECONDS, ""
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                return await send()
        except (aiohttp.ClientError, RequestRejected, TimeoutError) as error:
            last = str(error) or last  # the text of a time limit is empty
            if loop.time() > deadline:
                raise TimeoutError(f"not within {_PATIENCE_SECONDS:g} s: {what}: {last}") from error
            await asyncio.sleep(_RETRY_SECONDS)


class RequestFiler:
    """The requests of all Nodes, by their digests."""

    def __init__(self, kubelets: KubeletFleet, list_ips: Callable[[str], Sequence[str]]) -> None:
        """`list_ips` returns the addresses of a Node by its name."""
        self.legitimate: set[str] = set()
        self.required: dict[str, str] = {}  # the newest request of each Node that stays
        self.untouched: set[str] = set()  # for another signer
        self._kubelets = kubelets
        self._list_ips = list_ips

    async def request_certificate(self, name: str) -> None:
        """File a legitimate request of that Node."""
        self.required[name] = await self._file(name, name)

    async def request_lost_certificate(self, name: str) -> None:
        """File a request again if it is required and does not exist."""
        requests = await persist(f"find the request of {name}", self._list_requests)
        if name in self.required and self.required[name] not in {each.digest for each in requests}:
            await self.request_certificate(name)

    async def forge_requests(self, name: str, victim: str) -> None:
        """File requests that csr must not approve, by an attacker with a real node's identity."""
        await self._file(name, victim)
        await self._file(name, name, dns="vault.internal.example")
        await self._file(name, name, signer=_FOREIGN_SIGNER)

    async def wait_until_issued(self, name: str) -> None:
        """Wait until the Node's newest request has a certificate. Raises TimeoutError."""

        async def check() -> None:
            requests = await self._list_requests()
            if not any(each.is_issued and each.digest == self.required[name] for each in requests):
                raise TimeoutError(f"the request of {name} is not issued yet")

        await persist(f"{name} gets its certificate", check)

    async def _list_requests(self) -> Iterable[SigningRequest]:
        return map(read_signing_request, (await self._kubelets.send("GET", CSRS))["items"])

    async def _file(self, name: str, of: str, *, dns: str = "", signer: str = KUBELET_SERVING) -> str:
        """File a request of node `name` for the names of node `of`; return its digest."""
        user = f"{NODE_USER_PREFIX}{name}"
        pem = make_request_pem(common_name=user, dns=[dns or of], ips=self._list_ips(of))
        body = build_signing_request(pem, usages=SERVING_USAGES, expiration_seconds=None, signer=signer)
        digest = digest_request(body["spec"]["request"])
        if signer != KUBELET_SERVING:
            self.untouched.add(digest)
        elif name == of and not dns:
            self.legitimate.add(digest)
        await persist(
            f"{name} requests a certificate",
            lambda: self._kubelets.file_request(pem, user=user, signer=signer),
        )
        return digest
