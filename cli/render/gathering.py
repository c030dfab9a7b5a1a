"""The nodes that a command line names, from wherever it says that they are."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from cli.render.described import DescribedNode
from cli.render.facts_file import FactsError, read_facts
from cli.render.samples import samples
from libs.common.cloud_config.fact_fields import TalosResource


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which nodes."""

    samples: tuple[str, ...] = ()
    all_samples: bool = False
    facts: tuple[Path, ...] = ()
    from_cluster: tuple[str, ...] = ()
    all_nodes: bool = False
    kubeconfig: Path | None = None
    context: str = ""
    talosconfig: Path | None = None
    talos_endpoints: str = ""

    @property
    def any(self) -> bool:
        """Whether it names nodes at all."""
        in_cluster = self.from_cluster or self.all_nodes
        return bool(self.samples or self.all_samples or self.facts or in_cluster)


class Untold(msgspec.Struct, frozen=True, kw_only=True):
    """A Node that cannot be previewed, and why. `expected`: it is none of ours."""

    name: str
    reason: str
    expected: bool = False


class Gathered(msgspec.Struct, frozen=True, kw_only=True):
    """What was found."""

    nodes: tuple[DescribedNode, ...] = ()
    untold: tuple[Untold, ...] = ()


_MOST_BYTES: Final = 256 << 20  # --save-facts of 10,000 nodes with all that may be known of them


class GatheringError(Exception):
    """The nodes cannot be had; says why, and what to do about it."""


def gather(wanted: Wanted, *, prefer_ipv6: bool, resources: frozenset[TalosResource]) -> Gathered:
    """Every node, in the order of the command line. Raises GatheringError."""
    shipped = samples()
    nodes = [shipped[name] for name in (shipped if wanted.all_samples else wanted.samples)]
    for path in wanted.facts:
        nodes += _of_file(path)
    untold: tuple[Untold, ...] = ()
    if wanted.from_cluster or wanted.all_nodes:
        # Only now: what is offline need not load the clients of Kubernetes and Talos.
        from cli.render.from_cluster import read_cluster  # noqa: PLC0415

        read = read_cluster(wanted, prefer_ipv6=prefer_ipv6, resources=resources)
        nodes += read.nodes
        untold = read.untold
    _refuse_twins(nodes)
    return Gathered(nodes=tuple(nodes), untold=untold)


def _of_file(path: Path) -> Sequence[DescribedNode]:
    try:
        with path.open("rb") as file:  # a pipe will do, and need not end
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise GatheringError(f"{path}: it is longer than {_MOST_BYTES >> 20} MiB")
        return read_facts(content)
    except FactsError as error:
        raise GatheringError(f"{path}: {error}") from None
    except OSError as error:
        raise GatheringError(f"{path}: {error.strerror or error}") from None


def _refuse_twins(nodes: Sequence[DescribedNode]) -> None:
    seen: set[str] = set()
    for node in nodes:
        if node.name in seen:
            raise GatheringError(f"node {node.name} is named more than once")
        seen.add(node.name)
