"""Gathers, judges, shows. Writes to no cluster."""

from datetime import timedelta
from pathlib import Path

import msgspec
from rich.console import Console

from cli.cluster import CannotAsk
from cli.lines import print_json, print_lines
from cli.status.as_json import standing_json
from cli.status.from_cluster import Source, gather
from cli.status.offered import offered
from cli.status.standing import read, standing
from cli.status.text import of_standing
from libs.common.cloud_config.document import CloudConfigError
from libs.common.cloud_config.model import CloudConfig
from libs.common.controllers import NODE_IPAM
from libs.common.settings.cloud_config_reloader import parse_config_file, read_config_file
from services.ipam.effective_networks import NetworkFlags


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What ipam was told."""

    said: NetworkFlags = NetworkFlags()
    cloud_config: Path | None = None
    quarantine: timedelta = timedelta(minutes=10)


def status_ipam(source: Source, told: Told, *, with_nodes: bool, as_json: bool) -> int:
    """Show it; the exit status. Raises CannotAsk."""
    file = _file(told.cloud_config)
    seen = gather(source)
    pages = read(seen.pages)
    try:
        pools = offered(told.said, file.pools, pages.pages)
    except ValueError as error:
        raise CannotAsk(str(error)) from error
    found = standing(
        pages,
        read(seen.before),
        seen.nodes,
        pools,
        at=seen.at,
        rest=told.quarantine,
        ownership=file.ownership.for_controller(NODE_IPAM),
    )
    if as_json:
        print_json(standing_json(found))
    else:
        console = Console(highlight=False)
        width = console.width if console.is_terminal else 0
        print_lines(of_standing(found, with_nodes=with_nodes, width=width), console)
    return found.exit_status


def _file(path: Path | None) -> CloudConfig:
    if path is None:
        return CloudConfig()
    config = parse_config_file(read_config_file(path), path)
    if isinstance(config, CloudConfigError):
        raise CannotAsk("\n".join(config.mistakes)) from config
    return config
