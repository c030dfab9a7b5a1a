"""Every input ends in a value or in an error that the parser documents; `make fuzz` searches longer.

Inputs may have a megabyte and more, or be nested to the extreme.
"""

import functools
import json
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Final, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.common.contract import events
from libs.common.kube.watch_events import Changed, decode_watch_event
from tests.builders import make_node_observed
from tests.fuzz.kube_targets import REQUEST, RESOURCES
from tests.fuzz.mutations import mutate
from tests.fuzz.table import SAMPLES, TARGETS, seeds_of
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


REGRESSIONS = sorted(path for path in SAMPLES.glob("*/*") if path.is_file())


@pytest.mark.parametrize("name", TARGETS)
def test_the_seeds_cost_little(name: str):
    for seed in seeds_of(name):
        TARGETS[name].fuzz_counted(seed)


@pytest.mark.parametrize("path", REGRESSIONS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_an_input_that_once_failed_is_handled(path: Path):
    TARGETS[path.parent.name].fuzz_counted(path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_a_changed_seed_is_a_value_or_a_declared_error(name: str):
    target, seeds = TARGETS[name], seeds_of(name)
    profile = settings.default
    assert profile is not None

    @given(chance=st.randoms(use_true_random=False), data=st.binary(max_size=200))
    @settings(max_examples=min(target.examples, profile.max_examples))
    def fuzz(chance: Random, data: bytes) -> None:
        changed = mutate(chance.choice(seeds), chance.choice((*seeds, data)), chance, target.max_bytes)
        target.fuzz_counted(changed)
        target.fuzz_counted(data)

    fuzz()


def test_each_folder_of_samples_belongs_to_a_target():
    assert {path.parent.name for path in REGRESSIONS} <= set(TARGETS)


_MEMORY_AT_LEAST = 8 * 2**20  # bytes at the peak, with the modules that an input imports
_MEMORY_PER_BYTE = 60


@pytest.mark.parametrize("name", TARGETS)
def test_a_huge_input_costs_a_bounded_number_of_calls(name: str):
    target = TARGETS[name]
    for data in (*make_huge_inputs()["any"].values(), *make_huge_inputs()[target.format].values()):
        target.fuzz_counted(data[: target.max_bytes])


@pytest.mark.parametrize("name", TARGETS)
def test_a_huge_input_costs_a_bounded_amount_of_memory(name: str):
    target = TARGETS[name]
    tracemalloc.start()
    try:
        for kind, data in make_huge_inputs()[target.format].items():
            cut = data[: target.max_bytes]
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            target.fuzz(cut)
            _, peak = tracemalloc.get_traced_memory()
            assert peak - before < _MEMORY_AT_LEAST + _MEMORY_PER_BYTE * len(cut), kind
    finally:
        tracemalloc.stop()


def test_an_annotation_of_a_megabyte_is_not_published():
    event = decode_watch_event(
        make_huge_inputs()["json"]["annotation"], RESOURCES[0], REQUEST, lambda _: None
    )
    assert isinstance(event, Changed)
    assert len(events.encode(make_node_observed(event.item))) < 1024


@pytest.mark.parametrize("kind", ["annotations", "addresses"])
def test_a_node_with_ten_thousand_entries_is_too_large_for_a_message(kind: str):
    event = decode_watch_event(make_huge_inputs()["json"][kind], RESOURCES[0], REQUEST, lambda _: None)
    assert isinstance(event, Changed)
    with pytest.raises(events.EventError, match="the limit is"):
        events.encode(make_node_observed(event.item))
