"""Reads Kubernetes independently of the services during a run: Nodes, requests, the audit log."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from typing import Any, Final, TypeVar

import aiohttp
import msgspec

from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet
from libs.testbed.signing_requests import CSRS
from tests.chaos.history import (
    History,
    NodeState,
    SigningRequest,
    read_audit_log,
    read_node,
    read_signing_request,
)

_EVERY_SECONDS: Final = 0.5
_ANSWER_SECONDS: Final = 2.0
_NODES: Final = "/api/v1/nodes"
_Observed = TypeVar("_Observed", NodeState, SigningRequest)
_ObservedByVersion = dict[tuple[str, int, int], _Observed]  # uid, number of restores of etcd, resourceVersion


class Observer:
    """Lists Nodes and requests twice a second as admin. The audit log has the states in between.

    A write whose answer was lost with kube-apiserver is missing in the audit log, but not in the next list.
    """

    def __init__(self, control_plane: ControlPlane, admin: KubeletFleet) -> None:
        self._control_plane = control_plane
        self._admin = admin
        self._mark = control_plane.audit_mark()
        self._states: _ObservedByVersion[NodeState] = {}
        self._requests: _ObservedByVersion[SigningRequest] = {}
        self._observing: asyncio.Task[None] | None = None

    @classmethod
    @contextlib.asynccontextmanager
    async def start(cls, control_plane: ControlPlane) -> AsyncIterator["Observer"]:
        """Observe during the block, with connections of its own that no fault proxy carries."""
        async with KubeletFleet.start(control_plane, concurrency=2) as admin:
            observer = cls(control_plane, admin)
            observing = observer._observing = asyncio.create_task(observer._observe())
            try:
                yield observer
            finally:
                observing.cancel()
                await asyncio.gather(observing, return_exceptions=True)

    async def list_nodes(self) -> list[NodeState] | None:
        """The present Nodes; None while kube-apiserver does not answer."""
        return await self._list(_NODES, read_node, self._states)

    async def list_requests(self) -> list[SigningRequest] | None:
        """The present certificate requests; None while kube-apiserver does not answer."""
        return await self._list(CSRS, read_signing_request, self._requests)

    async def read_history(self) -> History:
        """Everything since the start.

        Raises TimeoutError if kube-apiserver does not answer, or the error that has ended the observation.
        """
        if self._observing is not None and self._observing.done():
            self._observing.result()
        if await self.list_requests() is None:
            raise TimeoutError("kube-apiserver does not answer at the end of the run")
        log = self._control_plane.audit_log.read_bytes()
        ends = [self._mark, *self._control_plane.etcd_restores, len(log)]
        audited = read_audit_log(*(log[begin:end].splitlines(keepends=True) for begin, end in pairwise(ends)))
        return msgspec.structs.replace(
            audited,
            states=(*self._states.values(), *audited.states),
            requests=(*self._requests.values(), *audited.requests),
        )

    async def _observe(self) -> None:
        while True:
            await self.list_nodes()
            await self.list_requests()
            await asyncio.sleep(_EVERY_SECONDS)

    async def _list(
        self,
        path: str,
        read: Callable[[dict[str, Any], int], _Observed],
        observed: _ObservedByVersion[_Observed],
    ) -> list[_Observed] | None:
        """List and record the objects; None while kube-apiserver does not answer."""
        restores = len(self._control_plane.etcd_restores)
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                answer = await self._admin.request("GET", path)
        except (aiohttp.ClientError, TimeoutError):
            return None
        if answer.status != 200:
            return None
        objects = [read(item, restores) for item in answer.body["items"]]
        observed.update({(each.uid, restores, each.version): each for each in objects})
        return objects
