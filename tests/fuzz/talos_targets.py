"""What a machine sends: HTTP/2 frames, COSI messages and the resources in them."""

import asyncio
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from libs.talos import machine_reading
from libs.talos.channel import CallEnded, StreamLost
from libs.talos.cosi_messages import Resource
from libs.talos.inventory_reading import MAX_EXTENSION_CHARS, read_part
from libs.talos.machine_events import WatchErrored, WatchOpening
from libs.talos.proto.generated import ControllerManagerConfigSpec
from libs.talos.proto.strict import InvalidResponse, parse
from libs.talos.resources import (
    ADDRESSES,
    CLUSTER_INFO,
    CONTROLLER_MANAGER,
    INVENTORY,
    MACHINE_STATUS,
    MEMBERS,
    NODENAME,
    PLATFORM_METADATA,
    SYSTEM_INFORMATION,
    Part,
    ResourceRef,
)
from libs.talos.validation import MAX_MESSAGE_BYTES, MAX_TEXT_CHARS, parse_resources
from libs.testbed.sim_machines.protobuf_wire import encode
from tests.fuzz.target import Target
from tests.talos_actors import BEGIN, Conversation, prefixed

_SAMPLES: Final = Path(__file__).parents[1] / "contract" / "talos_samples"
_BETWEEN: Final = b"\n--\n"  # separates the messages of an input


def _reader(ref: ResourceRef, read: Callable[[list[Resource]], Any]) -> Callable[[bytes], Any]:
    """Reads the messages of an input, as the responses about that resource."""
    return lambda data: read(parse_resources(ref, data.split(_BETWEEN)))


_READERS: Final[dict[str, Callable[[bytes], Any]]] = {
    "platform": _reader(PLATFORM_METADATA, machine_reading.read_platform),
    "system": _reader(SYSTEM_INFORMATION, machine_reading.read_system),
    "nodename": _reader(NODENAME, machine_reading.read_node_name),
    "cluster_name": _reader(CLUSTER_INFO, machine_reading.read_cluster_name),
    "cluster_networks": _reader(CONTROLLER_MANAGER, machine_reading.read_cluster_networks),
}


class _Sample(msgspec.Struct):
    reads: str
    message: bytes


class _File(msgspec.Struct):
    samples: list[_Sample]


def _samples(*reads: str) -> Callable[[], tuple[bytes, ...]]:
    """The messages that Talos's own Go types made for these readers."""

    def read() -> tuple[bytes, ...]:
        files = [
            msgspec.json.decode(path.read_bytes(), type=_File) for path in sorted(_SAMPLES.glob("*.json"))
        ]
        found = [sample.message for file in files for sample in file.samples if sample.reads in reads]
        assert found, reads
        return (*dict.fromkeys(found), _BETWEEN.join(found))

    return read


def _has_bounded_texts(value: object) -> bool:
    return all(len(text) <= MAX_TEXT_CHARS for text in _texts(value))


def _texts(value: object) -> list[str]:
    match value:
        case str():
            return [value]
        case dict():
            return [text for pair in value.items() for each in pair for text in _texts(each)]
        case list() | tuple():
            return [text for each in value for text in _texts(each)]
        case msgspec.Struct():
            return [text for each in msgspec.structs.astuple(value) for text in _texts(each)]
    return []


def _reads(reader: Callable[[bytes], object]) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        assert _has_bounded_texts(reader(data))

    return run


def _addresses(data: bytes) -> None:
    found = _reader(ADDRESSES, machine_reading.read_addresses)(data)
    assert _has_bounded_texts(found)
    assert all("/" in status.address for status in found)


def _inventory(part: Part) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        found = read_part(part, parse_resources(INVENTORY[part], data.split(_BETWEEN)))
        assert len(msgspec.json.encode(found)) < 8 * MAX_EXTENSION_CHARS

    return run


def _stage(data: bytes) -> None:
    assert _reader(MACHINE_STATUS, machine_reading.read_stage)(data).isascii()


def _members(data: bytes) -> None:
    assert _has_bounded_texts(list(_reader(MEMBERS, machine_reading.read_member_names)(data)))


def _watch(data: bytes) -> None:
    for ref in (NODENAME, ADDRESSES, MACHINE_STATUS):
        opening = WatchOpening(ref)
        try:
            for message in data.split(_BETWEEN):
                assert opening.apply(message) >= 0
        except (InvalidResponse, WatchErrored):
            continue


def _strict(data: bytes) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a warning in a service would be a log line per message
        parse(ControllerManagerConfigSpec, data)


def _http2(data: bytes) -> None:
    """Frames of the server, and then the end of the connection: the call ends, and no task is left."""
    asyncio.run(_answer_with(data.split(_BETWEEN)))


async def _answer_with(parts: Sequence[bytes]) -> None:
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    conversation = Conversation()
    call = await conversation.call()
    for part in parts:
        conversation.server.client.data_received(part)
        await asyncio.sleep(0)
    conversation.server.client.connection_lost(None)
    try:
        messages = await call
    except (CallEnded, StreamLost, InvalidResponse, TimeoutError):
        pass
    else:
        assert all(isinstance(message, bytes) for message in messages)
    assert conversation.server.client.is_closing
    assert not conversation.channel.is_busy
    assert not errors, errors


def _http2_seeds() -> tuple[bytes, ...]:
    return asyncio.run(_record_answers())


async def _record_answers() -> tuple[bytes, ...]:
    """The bytes of a response with two messages, and of one that goes on."""
    recorded = []
    for trailers in ([("grpc-status", "0")], [("grpc-status", "5"), ("grpc-message", "not found")], None):
        conversation = Conversation()
        call = await conversation.call()
        [stream] = conversation.server.streams
        http = conversation.server.http
        http.send_headers(stream, BEGIN)
        parts = [http.data_to_send()]
        for message in (b"one", b"two"):
            http.send_data(stream, prefixed(message))
            parts.append(http.data_to_send())
        if trailers is not None:
            http.send_headers(stream, trailers, end_stream=True)
            parts.append(http.data_to_send())
        recorded.append(_BETWEEN.join(parts))
        conversation.server.client.connection_lost(None)
        await asyncio.gather(call, return_exceptions=True)
    return tuple(recorded)


def _stages() -> tuple[bytes, ...]:
    return tuple(_resource(MACHINE_STATUS, "machine", spec) for spec in (b"", b"\x08\x04\x12\x02\x08\x01"))


def _member_seeds() -> tuple[bytes, ...]:
    members = [_resource(MEMBERS, name, b"\x0a\x01x") for name in ("web-1", "web-2")]
    return (members[0], _BETWEEN.join(members))


def _resource(ref: ResourceRef, identifier: str, spec: bytes) -> bytes:
    """A GetResponse, or one ListResponse."""
    return encode({1: {1: {1: ref.namespace, 2: ref.type, 3: identifier}, 2: {1: spec}}})


_protobuf_target = partial(Target, format="protobuf", max_bytes=MAX_MESSAGE_BYTES)
_read_target = partial(_protobuf_target, errors=(InvalidResponse,))
TARGETS: Final = (
    *(
        _read_target(name=f"talos-{name.replace('_', '-')}", run=_reads(reader), seeds=_samples(name))
        for name, reader in _READERS.items()
    ),
    _read_target(name="talos-addresses", run=_addresses, seeds=_samples("address")),
    *(
        _read_target(name=f"talos-{part.lower()}", run=_inventory(part), seeds=_samples(part))
        for part in INVENTORY
    ),
    _read_target(name="talos-stage", run=_stage, seeds=_stages),
    _read_target(name="talos-members", run=_members, seeds=_member_seeds),
    _read_target(name="talos-protobuf", run=_strict, seeds=_samples("platform")),
    _protobuf_target(name="talos-watch", run=_watch, seeds=_samples("watch", "nodename", "address")),
    Target(
        name="talos-http2", format="http", run=_http2, seeds=_http2_seeds, max_bytes=64 * 1024, examples=15
    ),
)
