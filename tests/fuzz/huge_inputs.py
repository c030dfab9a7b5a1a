"""Inputs of a megabyte and more, or nested to the extreme, by the format of a target."""

import functools
import json
from collections.abc import Mapping
from typing import Final, Literal

from tests.fuzz.target import Format

MEGABYTE_AND_HALF: Final = 1_500_000  # bytes: etcd accepts an object of that size
_LAUGHS: Final = b"".join(
    (
        b"a0: &a0 [x]\n",
        *(b"a%d: &a%d [%b]\n" % (i, i, b", ".join([b"*a%d" % (i - 1)] * 9)) for i in range(1, 10)),
    )
)
_ADDRESSES: Final = [f"10.{number >> 8 & 255}.{number & 255}.1" for number in range(10_000)]


def _node(**metadata: object) -> bytes:
    node = {"metadata": {"name": "a", "uid": "u", "resourceVersion": "1", **metadata}}
    return json.dumps({"type": "ADDED", "object": node}).encode()


def _node_with_addresses() -> bytes:
    addresses = [{"type": "InternalIP", "address": address} for address in _ADDRESSES]
    node = {"metadata": {"name": "a", "resourceVersion": "1"}, "status": {"addresses": addresses}}
    return json.dumps({"type": "ADDED", "object": node}).encode()


def _varint(number: int) -> bytes:
    low = b""
    while number > 0x7F:
        low, number = low + bytes([number & 0x7F | 0x80]), number >> 7
    return low + bytes([number])


def _nested_protobuf(levels: int) -> bytes:
    inner = b""
    for _ in range(levels):
        inner = b"\x0a" + _varint(len(inner)) + inner
    return inner


@functools.cache
def make_huge_inputs() -> Mapping[Format | Literal["any"], Mapping[str, bytes]]:
    """The inputs by format and name. They take long to make: only a worker that tests them does."""
    text, lines, brackets = b"x" * MEGABYTE_AND_HALF, b"a: b\r\n" * 100_000, b"[" * 100_000
    return {
        "any": {
            "brackets": brackets,
            "braces": b'{"a":' * 100_000,
            "not-text": b"\xff" * MEGABYTE_AND_HALF,
            "list-of-addresses": ",".join(_ADDRESSES).encode(),
        },
        "json": {
            "brackets-in-an-object": b'{"metadata":{"resourceVersion":"1"},"spec":%b,"items":[%b]}'
            % ((brackets, brackets)),
            "brackets-in-a-watch-event": b'{"type":"ADDED","object":{"a":%b}}' % brackets,
            "brackets-in-a-claim": b'{"version":1,"range":"10.240.0.0/12","claims":{},"a":%b}' % brackets,
            "annotation": _node(
                annotations={"alpha.kubernetes.io/provided-node-ip": "1" * MEGABYTE_AND_HALF}
            ),
            "annotations": _node(annotations={f"a.example/{number}": "x" * 100 for number in range(10_000)}),
            "addresses": _node_with_addresses(),
            "json-of-addresses": json.dumps(_ADDRESSES).encode(),
            "text": text,
        },
        "yaml": {
            "yaml-of-addresses": b"context: a\ncontexts: {a: {endpoints: [%b]}}"
            % ",".join(_ADDRESSES).encode(),
            "lines": lines,
            "digits": b"9" * MEGABYTE_AND_HALF,
            "flow-collections": b"a: " + b"[{b: " * 100_000,
            "block-collections": b"\n".join(b" " * level + b"a:" for level in range(1000)),
            "laughs": _LAUGHS,
            "merged-laughs": _LAUGHS.replace(b"[", b"{<<: [").replace(b"]", b"]}"),
        },
        "template": {
            "parentheses": b"{{" + b"(" * 16_000,
            "blocks": b"{{if true}}" * 2_900,
            "pipelines": b"{{" + b"1 | print " * 3_000 + b"}}",
            "ranges": b'{{range $i := "%b"}}' % (b"x" * 1000) * 30 + b"{{end}}" * 30,
        },
        "protobuf": {
            "protobuf-levels": _nested_protobuf(20_000),
            "protobuf-fields": b"\x0a\x00" * 200_000,
            "protobuf-numbers": b"\x08\x01" * 200_000,
            "messages": b"\n--\n" * 10_000,
        },
        "der": {
            "der-levels": b"\x30\x80" * 8_000,
            "pem": b"-----BEGIN CERTIFICATE REQUEST-----\n"
            + b"A" * 100_000
            + b"\n-----END CERTIFICATE REQUEST-----\n",
        },
        "http": {
            "http-headers": b"GET /livez HTTP/1.1\r\n" + b"A: b\r\n" * 10_000,
            "lines": lines,
            "text": text,
        },
    }
