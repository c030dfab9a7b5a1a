"""COSI's State service and Talos's Version over grpclib, for the machine that the `node` header names."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from grpclib.const import Cardinality, Handler, Status
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError
from grpclib.server import Stream

from libs.testbed.sim_machines.protobuf_wire import encode
from libs.testbed.sim_machines.requests import CallRejected, parse_get, parse_list, parse_watch
from libs.testbed.sim_machines.resource_state import (
    encode_resource,
    get_resource,
    select_resources,
)
from libs.testbed.sim_machines.resources import build_version_response
from libs.testbed.sim_machines.sim_machine import SimFleet, SimMachine

Bytes = Stream[bytes, bytes]

_STATE = "/cosi.resource.State/"
_VERSION = "/machine.MachineService/Version"


class RawCodec(CodecBase):
    """Leaves messages as bytes; `protobuf_wire` decodes and encodes them."""

    __content_subtype__ = "proto"

    def encode(self, message: Any, message_type: Any) -> bytes:
        return bytes(message)

    def decode(self, data: bytes, message_type: Any) -> bytes:
        return data


class TalosService:
    """The methods of COSI's State service and Version."""

    def __init__(self, fleet: SimFleet) -> None:
        self._fleet = fleet

    def __mapping__(self) -> dict[str, Handler]:
        one, many = Cardinality.UNARY_UNARY, Cardinality.UNARY_STREAM
        methods = {
            _STATE + "Get": (self._get, one),
            _STATE + "List": (self._list, many),
            _STATE + "Watch": (self._watch, many),
            _VERSION: (self._version, one),
        }
        return {
            path: Handler(_make_handler(answer), kind, bytes, bytes)
            for path, (answer, kind) in methods.items()
        }

    async def _get(self, stream: Bytes) -> None:
        asked = parse_get(await _read_request(stream))
        await stream.send_message(encode({1: get_resource(self._find_machine(stream).state, asked)}))

    async def _list(self, stream: Bytes) -> None:
        asked = parse_list(await _read_request(stream))
        for held in select_resources(self._find_machine(stream).state, asked):
            await stream.send_message(encode({1: encode_resource(held)}))

    async def _watch(self, stream: Bytes) -> None:
        asked = parse_watch(await _read_request(stream))
        machine = self._find_machine(stream)
        with machine.open_watch(asked, _get_node(stream) or "", time.time_ns()) as watch:
            await stream.send_message(b"")  # the watch is ready
            while True:
                await stream.send_message((await watch.next_event()).message())

    async def _version(self, stream: Bytes) -> None:
        await _read_request(stream)
        await stream.send_message(build_version_response(self._find_machine(stream).facts))

    def _find_machine(self, stream: Bytes) -> SimMachine:
        """Select the machine by the `node` header. Raises CallRejected."""
        return self._fleet.find_machine(_get_node(stream))


def _get_node(stream: Bytes) -> str | None:
    headers = stream.metadata
    assert headers is not None
    node = headers.get("node")
    return None if node is None else str(node)


def _make_handler(answer: Callable[[Bytes], Awaitable[None]]) -> Callable[[Bytes], Awaitable[None]]:
    async def handle(stream: Bytes) -> None:
        try:
            await answer(stream)
        except CallRejected as rejected:
            raise GRPCError(Status(rejected.code), rejected.message) from rejected

    return handle


async def _read_request(stream: Bytes) -> bytes:
    request = await stream.recv_message()
    assert request is not None
    return request
