"""Parses a file with Nodes and machine facts into events, such as the shipped samples. Pure."""

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import Any, Final

import msgspec
from msgspec import inspect

from cli.cluster.machine_events import make_enriched
from libs.common.contract.events import NodeEnriched
from libs.common.contract.machine import MachineFacts
from libs.common.contract.node import (
    PROVIDED_NODE_IP_ANNOTATION,
    UNINITIALIZED_TAINT,
    Node,
    NodeSpec,
    ObjectMeta,
    Taint,
)
from libs.common.json_errors import JSON_ERRORS
from libs.common.safe_yaml import YamlError, read_yaml

# The query time of facts without one: long after the Node was created.
_QUERIED_AT: Final = datetime(2100, 1, 1, tzinfo=UTC)
_ONE: Final = 'one node ({"node": ..., "facts": ...}, as in a NodeEnriched message) or a list of them'


class FactsError(Exception):
    """The file describes no node; the text says what was expected and where."""


class _Item(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of NodeEnriched that a file has."""

    node: Node | None = None
    facts: MachineFacts
    verified_by: str = "nodename"


def parse_facts(content: bytes) -> tuple[NodeEnriched, ...]:
    """Parse JSON, JSON lines or YAML. Raises FactsError.

    Without `node`, the result has the Node that the machine's kubelet would register.
    """
    found = _decode(content)
    if isinstance(found, dict) and "nodes" in found:
        found = found["nodes"]
    items = found if isinstance(found, list) else [found]
    if not items:
        raise FactsError(f"it is empty; expected {_ONE}")
    return tuple(
        _make_event(item, f"[{place}]" if isinstance(found, list) else "") for place, item in enumerate(items)
    )


def encode_facts(nodes: Sequence[NodeEnriched]) -> bytes:
    """Return the content of a file that `parse_facts` parses into these nodes."""
    plain = msgspec.json.decode(msgspec.json.encode(nodes), type=list[_Item])  # no managedFields
    return msgspec.json.format(msgspec.json.encode({"nodes": plain}), indent=1) + b"\n"


def _decode(content: bytes) -> Any:
    for decode in (msgspec.json.decode, msgspec.json.Decoder().decode_lines):
        try:
            return decode(content)
        except JSON_ERRORS:
            continue
    try:
        return read_yaml(content, object)
    except YamlError as error:
        raise FactsError(f"it is neither JSON nor YAML: {error}") from None


def _make_event(item: Any, where: str) -> NodeEnriched:
    at = f"{where}: " if where else ""
    if not isinstance(item, dict):
        raise FactsError(f"{at}expected {_ONE}")
    if "facts" not in item:
        raise FactsError(f"{at}it has no machine facts; expected {_ONE}")
    facts = item["facts"]
    if unknown := _find_unknown_field(facts, inspect.type_info(MachineFacts)):
        raise FactsError(f"{at}facts{unknown} is not a machine fact")
    if isinstance(facts, dict):
        facts = {"queried_at": _QUERIED_AT, **facts}
    try:
        read = msgspec.convert({**item, "facts": facts}, _Item)
    except msgspec.ValidationError as error:
        raise FactsError(f"{at}{error}") from None
    node = read.node if read.node is not None else _make_registered_node(read.facts, at)
    return make_enriched(node, read.facts, read.facts.queried_at, verified_by=read.verified_by)


def _find_unknown_field(given: Any, kind: inspect.Type) -> str:
    """Return the path of an unknown field, or ""; in a handwritten file it is a misspelled one."""
    for each in kind.types if isinstance(kind, inspect.UnionType) else (kind,):
        if isinstance(given, dict) and isinstance(each, inspect.StructType):
            known = {field.encode_name: field.type for field in each.fields}
            for key, value in given.items():
                below = _find_unknown_field(value, known[key]) if key in known else ""
                if below or key not in known:
                    return f".{key}{below}"
        elif isinstance(given, list) and isinstance(each, inspect.VarTupleType):
            for place, item in enumerate(given):
                if below := _find_unknown_field(item, each.item_type):
                    return f"[{place}]{below}"
    return ""


def _make_registered_node(facts: MachineFacts, at: str) -> Node:
    """Return the Node that a joining kubelet registers; the facts must contain address and name."""
    if not facts.node_ip or not facts.node_name:
        raise FactsError(f"{at}without a node, facts must contain node_name and node_ip")
    metadata = ObjectMeta(
        name=facts.node_name,
        labels={"kubernetes.io/hostname": facts.node_name},
        annotations={PROVIDED_NODE_IP_ANNOTATION: facts.node_ip},
    )
    taint = Taint(key=UNINITIALIZED_TAINT, value="true", effect="NoSchedule")
    return Node(metadata=metadata, spec=NodeSpec(taints=(taint,)))


@cache
def load_samples() -> dict[str, NodeEnriched]:
    """Return the samples by platform, in alphabetical order."""
    content = resources.files("cli.render").joinpath("samples.json").read_bytes()
    return {each.facts.platform.platform: each for each in parse_facts(content)}
