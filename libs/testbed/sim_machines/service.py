"""COSI's State service and Talos's Version over grpclib, for the machine that the `node` header names."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from grpclib.const import Cardinality, Handler, Status
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError
from grpclib.server import Stream

from libs.testbed.machines import Call
from libs.testbed.sim_machines import access
from libs.testbed.sim_machines.fleet import Fleet
from libs.testbed.sim_machines.machine import Visit
from libs.testbed.sim_machines.refusal import Code, Refused, not_authorized
from libs.testbed.sim_machines.requests import read_get, read_list, read_type, read_watch
from libs.testbed.sim_machines.routing import target
from libs.testbed.sim_machines.state import encode_resource, get, opening, select
from libs.testbed.sim_machines.version import version_response
from libs.testbed.sim_machines.wire import Malformed, encode

Bytes = Stream[bytes, bytes]

_STATE = "/cosi.resource.State/"
_VERSION = "/machine.MachineService/Version"


class RawCodec(CodecBase):
    """Messages stay bytes: they are read and written by `wire`."""

    __content_subtype__ = "proto"

    def encode(self, message: Any, message_type: Any) -> bytes:
        return bytes(message)

    def decode(self, data: bytes, message_type: Any) -> bytes:
        return data


class Methods(dict[str, Handler]):
    """Methods by their path. To a path that it lacks, grpclib would give an answer without a content type,
    which clients take for a broken server.
    """

    def get(self, path: str, default: Any = None) -> Any:
        """The method, or one that says that there is none."""
        return super().get(path) or Handler(_answering(_lacking(path)), Cardinality.UNARY_UNARY, bytes, bytes)


class TalosService:
    """Every method that a reader may call."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def __mapping__(self) -> dict[str, Handler]:
        one, many = Cardinality.UNARY_UNARY, Cardinality.UNARY_STREAM
        methods = {
            _STATE + "Get": (self._get, one),
            _STATE + "List": (self._list, many),
            _STATE + "Watch": (self._watch, many),
            _STATE + "Create": (_refuse_to_write, one),
            _STATE + "Update": (_refuse_to_write, one),
            _STATE + "Destroy": (_refuse_to_write, one),
            _VERSION: (self._version, one),
        }
        return {
            path: Handler(_answering(answer), kind, bytes, bytes) for path, (answer, kind) in methods.items()
        }

    async def _get(self, stream: Bytes) -> None:
        asked = read_get(await _request(stream))
        async with self._visit(stream, _STATE, Call("", "Get", asked.type)) as visit:
            await visit.allowed(asked.namespace, asked.type)
            await stream.send_message(encode({1: get(visit.machine.state, asked)}))

    async def _list(self, stream: Bytes) -> None:
        request = await _request(stream)
        async with self._visit(stream, _STATE, Call("", "List", read_type(request))) as visit:
            asked = read_list(request)
            await visit.allowed(asked.namespace, asked.type)
            for held in select(visit.machine.state, asked):
                await visit.awake()
                await stream.send_message(encode({1: encode_resource(held)}))

    async def _watch(self, stream: Bytes) -> None:
        request = await _request(stream)
        async with self._visit(stream, _STATE, Call("", "Watch", read_type(request))) as visit:
            asked = read_watch(request)
            await visit.allowed(asked.of.namespace, asked.of.type)
            visit.watch(asked, list(opening(visit.machine.state, asked, time.time_ns())))
            await stream.send_message(b"")  # says that the watch is ready
            while True:
                event = await visit.next_event()
                if not visit.is_deaf:
                    await stream.send_message(event.message())

    async def _version(self, stream: Bytes) -> None:
        await _request(stream)
        async with self._visit(stream, "/machine.MachineService/", Call("", "Version", "")) as visit:
            await stream.send_message(version_response(visit.machine.facts))

    @asynccontextmanager
    async def _visit(self, stream: Bytes, service: str, call: Call) -> AsyncIterator[Visit]:
        """Find the machine, count the call, check the role, endure what is wrong. Raises Refused."""
        headers = stream.metadata
        assert headers is not None
        node = None
        try:
            nodes = [str(value) for value in headers.getall("nodes", [])]
            node = target([str(value) for value in headers.getall("node", [])], nodes, service + call.method)
            machine = self._fleet.at(node)
        finally:
            self._fleet.calls[call._replace(node=node or "")] += 1
        access.authorize(_roles(stream))
        async with machine.visited(node or "") as visit:
            yield visit


def _answering(answer: Callable[[Bytes], Awaitable[None]]) -> Callable[[Bytes], Awaitable[None]]:
    async def handle(stream: Bytes) -> None:
        try:
            await answer(stream)
        except Refused as refused:
            raise GRPCError(Status(refused.code), refused.message) from refused
        except Malformed as error:
            words = f"grpc: error unmarshalling request: {error}"
            raise GRPCError(Status.INTERNAL, words) from error

    return handle


async def _request(stream: Bytes) -> bytes:
    request = await stream.recv_message()
    if request is None:
        raise Refused(Code.INTERNAL, "the call ended without a request")
    return request


def _lacking(path: str) -> Callable[[Bytes], Awaitable[None]]:
    async def answer(stream: Bytes) -> None:
        raise Refused(Code.UNIMPLEMENTED, f"method {path.rpartition('/')[2]} not implemented")

    return answer


async def _refuse_to_write(stream: Bytes) -> None:
    raise not_authorized()


def _roles(stream: Bytes) -> list[str]:
    """The organizations of the client certificate."""
    certificate = stream.peer.cert() or {}
    names = [name for relative in certificate.get("subject", ()) for name in relative]
    return [value for kind, value in names if kind == "organizationName"]
