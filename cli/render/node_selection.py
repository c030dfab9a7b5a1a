"""Collects the nodes that the command line selects: samples, facts files and cluster Nodes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from cli.cluster.query import ClusterQuery
from cli.command_exit import CommandError
from cli.render.facts_file import FactsError, load_samples, parse_facts
from libs.common.cloud_config.fact_fields import TalosResource
from libs.common.contract.events import NodeEnriched


class NodeSelection(ClusterQuery, frozen=True, kw_only=True):
    """Which nodes `render` shows: samples, facts files or cluster Nodes."""

    samples: tuple[str, ...] = ()
    all_samples: bool = False
    facts: tuple[Path, ...] = ()
    from_cluster: tuple[str, ...] = ()
    all_nodes: bool = False

    @property
    def is_any_selected(self) -> bool:
        """Whether any node is selected."""
        in_cluster = self.from_cluster or self.all_nodes
        return bool(self.samples or self.all_samples or self.facts or in_cluster)


class SkippedNode(msgspec.Struct, frozen=True, kw_only=True):
    """A Node that cannot be previewed, with the reason; `expected`: another controller owns it."""

    name: str
    reason: str
    expected: bool = False


class GatheredNodes(msgspec.Struct, frozen=True, kw_only=True):
    """The selected nodes, and those that were skipped."""

    nodes: tuple[NodeEnriched, ...] = ()
    skipped: tuple[SkippedNode, ...] = ()


_MAX_BYTES: Final = 256 << 20  # more than --save-facts writes for 10,000 nodes with all facts


def gather_nodes(
    selection: NodeSelection, *, prefer_ipv6: bool, resources: frozenset[TalosResource]
) -> GatheredNodes:
    """Return every node, in the order of the command line. Raises CommandError."""
    shipped = load_samples()
    nodes = [shipped[name] for name in (shipped if selection.all_samples else selection.samples)]
    for path in selection.facts:
        nodes += _read_file(path)
    read = GatheredNodes()
    if selection.from_cluster or selection.all_nodes:
        # Imported here, so that offline use does not load the Kubernetes and Talos clients.
        from cli.cluster.kube_reader import run_gathering  # noqa: PLC0415
        from cli.render.from_cluster import gather_from_cluster  # noqa: PLC0415

        gathering = gather_from_cluster(selection, prefer_ipv6=prefer_ipv6, resources=resources)
        read = run_gathering(gathering)
        nodes += read.nodes
    _reject_duplicates(nodes)
    return msgspec.structs.replace(read, nodes=tuple(nodes))


def _read_file(path: Path) -> Sequence[NodeEnriched]:
    try:
        with path.open("rb") as file:  # a pipe is allowed and may be endless
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise CommandError(f"{path}: larger than {_MAX_BYTES >> 20} MiB")
        return parse_facts(content)
    except FactsError as error:
        raise CommandError(f"{path}: {error}") from None
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}") from None


def _reject_duplicates(nodes: Sequence[NodeEnriched]) -> None:
    seen: set[str] = set()
    for name in (each.node.name for each in nodes):
        if name in seen:
            raise CommandError(f"node {name} is given more than once")
        seen.add(name)
