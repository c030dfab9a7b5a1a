"""Changes inputs by a few random edits: of bytes, and of the structure of JSON, protobuf and DER."""

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final, TypeVar

from libs.talos.proto.strict import InvalidResponse, fields
from libs.testbed.sim_machines.protobuf_wire import encode
from tests.csr_der import encode_tlv

T = TypeVar("T")

TOKENS: Final = (
    *(
        b"\x00",
        b"\xff",
        b"\x80",
        b"\xc3",
        b"\xed\xa0\x80",
        b"\xe2\x80\xa8",
        b"\xef\xbb\xbf",
        b"\xff" * 9 + b"\x01",
    ),
    *(
        b"[",
        b"]",
        b"{",
        b"}",
        b'"',
        b"\\",
        b"\\u0000",
        b"\\ud800",
        b":",
        b",",
        b"\r\n",
        b"\n",
        b" ",
        b"%",
        b"-",
    ),
    *(
        b"null",
        b"true",
        b"{{",
        b"}}",
        b"<<: *a",
        b"&a ",
        b"!!binary x",
        b"2001-13-45",
        b"9" * 30,
        b"9" * 5000,
    ),
    *(
        b"1e999",
        b"-1",
        b"0",
        b"::",
        b"fe80::1%eth0",
        b"/129",
        b"[" * 200,
        b"x" * 2000,
        b"0001-01-01T00:00:00+23:59",
    ),
    *(b"~", b"- ", b": ", b"{a: " * 70, b"*a", b"!!int x", b"!!python/object:os.system ", b"? [a]\n: b\n"),
    *(
        b"---\n",
        b"%YAML 1.1\n",
        b"\t",
        b"'",
        b"|",
        b">",
        b"#",
        b"=",
        b"0x",
        b"\xc2\x85",
        b"Regexp",
        b"labels: ",
    ),
)
VALUES: Final[tuple[Any, ...]] = (
    *(None, True, -1, 0, 2**31, 2**63, 10**30, 1.5, 1e308, "", "\x00", "é", "x" * 300, "9" * 5000, [], {}),
    *(["a"] * 40, {"": ""}, {"a": {"b": {}}}, "10.0.0.5", "::ffff:10.0.0.5", "0001-01-01T00:00:00Z"),
    *("9999-12-31T23:59:59-23:59", "a.b>c *", "10.0.0.0/8", "-----BEGIN X-----"),
)
_NUMBERS: Final = (0, 1, 2**31, 2**32, 2**63, 2**64 - 1)
_DER_TAGS: Final = (
    0x01,
    0x02,
    0x03,
    0x04,
    0x05,
    0x06,
    0x0C,
    0x13,
    0x16,
    0x1E,
    0x30,
    0x31,
    0x80,
    0x82,
    0x87,
    0xA0,
)

Edit = Callable[[bytes, bytes, Random], bytes]


def mutate(data: bytes, other: bytes, chance: Random, max_bytes: int) -> bytes:
    """Return the data after one to four edits; `other` is another input, of which an edit may take a part."""
    for _ in range(chance.randint(1, 4)):
        data = chance.choice(_EDITS)(data, other, chance)
    return data[:max_bytes]


def _insert(data: bytes, _: bytes, chance: Random) -> bytes:
    at = chance.randint(0, len(data))
    return data[:at] + chance.choice(TOKENS) + data[at:]


def _overwrite(data: bytes, _: bytes, chance: Random) -> bytes:
    at = chance.randint(0, len(data))
    return data[:at] + bytes([chance.randint(0, 255)]) + data[at + 1 :]


def _delete(data: bytes, _: bytes, chance: Random) -> bytes:
    at = chance.randint(0, len(data))
    return data[:at] + data[at + chance.choice((1, 2, 5, 40, 400)) :]


def _repeat(data: bytes, _: bytes, chance: Random) -> bytes:
    at = chance.randint(0, len(data))
    end = at + chance.choice((1, 4, 30, 200))
    return data[:end] + data[at:end] * chance.choice((1, 3, 50)) + data[end:]


def _splice(data: bytes, other: bytes, chance: Random) -> bytes:
    return data[: chance.randint(0, len(data))] + other[chance.randint(0, len(other)) :]


def _change_json(data: bytes, _: bytes, chance: Random) -> bytes:
    """Replace, remove or repeat one value of a JSON document."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return data
    places = list(_places(document))
    if not places:
        return json.dumps(chance.choice(VALUES)).encode()
    holder, key = chance.choice(places)
    match chance.randint(0, 3):
        case 0 if isinstance(holder, dict):
            del holder[key]
        case 1 if isinstance(holder, list):
            holder.extend([holder[key]] * chance.choice((1, 40)))
        case 2 if isinstance(holder, dict):
            holder[chance.choice(("", "added", "x" * 300))] = holder[key]
        case _:
            holder[key] = chance.choice(VALUES)
    return json.dumps(document).encode()


def _places(value: Any) -> list[tuple[Any, Any]]:
    keys: Sequence[Any] = (
        list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    )
    return [place for key in keys for place in ((value, key), *_places(value[key]))]


def _change_protobuf(data: bytes, other: bytes, chance: Random) -> bytes:
    """Replace, remove, repeat or descend into one field; the lengths around it stay right."""
    try:
        found = list(fields(data))
    except InvalidResponse:
        return data
    if not found:
        return data

    def descend(value: int | bytes) -> int | bytes:
        return _change_protobuf(value, other, chance) if isinstance(value, bytes) else value ^ 1

    changed = _change_one(found, chance, range(1, 21), (*_NUMBERS, b"", *TOKENS, other), descend)
    return b"".join(encode({number: [content]}) for number, content in changed)


def _change_der(data: bytes, _: bytes, chance: Random) -> bytes:
    """Replace, remove, repeat or descend into one element; the lengths around it stay right."""
    found = _elements(data)
    if not found:
        return data
    changed = _change_one(found, chance, _DER_TAGS, TOKENS, lambda content: _change_der(content, b"", chance))
    return b"".join(encode_tlv(tag, content) for tag, content in changed)


def _change_one(
    found: Sequence[tuple[int, T]],
    chance: Random,
    tags: Sequence[int],
    contents: Sequence[T],
    descend: Callable[[T], T],
) -> list[tuple[int, T]]:
    """Replace, remove, repeat or descend into one pair of tag and content."""
    at = chance.randrange(len(found))
    tag, content = found[at]
    match chance.randint(0, 4):
        case 0:
            changed = [(tag, content)] * chance.choice((0, 2, 50))
        case 1:
            changed = [(chance.choice(tags), content)]
        case 2:
            changed = [(tag, chance.choice(contents))]
        case _:
            changed = [(tag, descend(content))]
    return [*found[:at], *changed, *found[at + 1 :]]


def _elements(data: bytes) -> list[tuple[int, bytes]]:
    """Return tag and content of DER elements, none if the bytes are something else."""
    found, at = [], 0
    while at + 2 <= len(data):
        tag, length, at = data[at], data[at + 1], at + 2
        if length >= 0x80:
            count = length & 0x7F
            length, at = int.from_bytes(data[at : at + count], "big"), at + count
        if at + length > len(data):
            return []
        found.append((tag, data[at : at + length]))
        at += length
    return found if at == len(data) else []


_EDITS: Final[tuple[Edit, ...]] = (
    *(_insert, _overwrite, _delete, _repeat, _splice),
    *(_change_json, _change_json, _change_json),
    *(_change_protobuf, _change_protobuf, _change_protobuf),
    *(_change_der, _change_der, _change_der),
)
