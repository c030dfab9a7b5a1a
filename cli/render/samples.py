"""The shipped sample nodes: one joining node per platform of Talos."""

from functools import cache
from importlib import resources

import msgspec

from cli.cluster.described_node import DescribedNode


class _File(msgspec.Struct, frozen=True):
    nodes: tuple[DescribedNode, ...]


@cache
def load_samples() -> dict[str, DescribedNode]:
    """Return the samples by platform, in alphabetical order."""
    content = resources.files("cli.render").joinpath("samples.json").read_bytes()
    return {each.facts.platform.platform: each for each in msgspec.json.decode(content, type=_File).nodes}
