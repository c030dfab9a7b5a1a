"""The values that the rules of a file gave to the nodes of the demo."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from cli.command_exit import CommandError


def read_rule_keys(file: Path) -> frozenset[tuple[str, str]]:
    """Return kind and key of everything that the rules set.

    Raises click.UsageError with every mistake of the file.
    """
    from cli.render.compiled_config import read_config  # noqa: PLC0415 - `--help` need not load all of it

    try:
        rules = read_config(file).document.rules
    except CommandError as refused:
        raise click.UsageError(str(refused)) from None
    return frozenset((kind, entry.key) for rule in rules for kind, entry in rule.entries())


def format_rule_values(keys: frozenset[tuple[str, str]], nodes: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the values of these keys on the nodes, with the number of nodes; [] without a value."""
    counted = Counter(each for node in nodes for each in _list_node_values(node) if each[:2] in keys)
    return [
        f"{count:5} node{'s' if count > 1 else ' '}  {kind.rstrip('s')} {key}{value}"
        for (kind, key, value), count in sorted(counted.items())
    ]


async def count_matches(file: Path, kubeconfig: Path, talosconfig: Path) -> list[str]:
    """Return the number of nodes that each rule matches, as `talos-ccm render --all-nodes` evaluates it."""
    from cli.render.compiled_config import read_config  # noqa: PLC0415 - as above
    from cli.render.from_cluster import gather_from_cluster  # noqa: PLC0415
    from cli.render.node_selection import NodeSelection  # noqa: PLC0415
    from libs.common.cloud_config.fact_fields import required_resources  # noqa: PLC0415
    from services.labeler.core.rules.application import apply_rules  # noqa: PLC0415

    used = read_config(file)
    if not used.document.rules:
        return ["nothing: the file has no rules"]
    found = await gather_from_cluster(
        NodeSelection(all_nodes=True, kubeconfig=kubeconfig, talosconfig=talosconfig),
        prefer_ipv6=used.config.prefer_ipv6,
        resources=required_resources(used.document.rules),
    )
    results = [each for node in found.nodes for each in apply_rules(used.config.rules, node.facts).results]
    matched = Counter(each.rule for each in results if each.is_matched)
    if not matched:
        return ["nothing: no rule matches these nodes"]
    return ["no value of a label, annotation or taint"] + [
        f"{count:5} node{'s' if count > 1 else ' '}  match {rule}" for rule, count in sorted(matched.items())
    ]


def _list_node_values(node: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    metadata = node["metadata"]
    for kind in ("annotations", "labels"):
        yield from ((kind, key, f"={value}") for key, value in metadata.get(kind, {}).items())
    for taint in node["spec"].get("taints", []):
        value = f"={taint['value']}" if taint.get("value") else ""
        yield "taints", taint["key"], f"{value}:{taint['effect']}"
