"""Reads the files, gathers the nodes, shows what would become of them. Writes to no cluster."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click
import msgspec
from rich.console import Console
from rich.text import Text

from cli.lines import Line, print_json, print_lines
from cli.render import text
from cli.render.against import compare
from cli.render.as_json import comparison_json, previews_json
from cli.render.changes import changes
from cli.render.config_in_use import ConfigInUse, config_in_use
from cli.render.facts_file import written
from cli.render.gathering import Gathered, GatheringError, Untold, Wanted, gather
from cli.render.preview import preview
from libs.common.cloud_config.document import CloudConfigError
from libs.common.cloud_config.fact_fields import FIELDS, TalosResource
from libs.common.cloud_config.required_resources import required_resources
from libs.common.safe_yaml import MAX_BYTES
from libs.common.settings.cloud_config_reloader import UnreadableFile, read_config_file
from services.labeler.rules import RulesError, collect_findings

DONE, CHANGES, FAILED = 0, 1, 2
_EVERYTHING: Final[frozenset[TalosResource]] = frozenset(field.resource for field in FIELDS if field.resource)


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What to show of which file and which nodes."""

    file: Path
    against: Path | None
    wanted: Wanted
    as_json: bool
    exit_code: bool
    save_facts: Path | None


class Refused(Exception):
    """It cannot be shown; each line of the text says why."""


def render(asked: Asked) -> int:
    """Show it; the exit status. Raises Refused."""
    used = read_config(asked.file)
    old = read_config(asked.against) if asked.against else None
    gathered = _gathered(asked, [each for each in (used, old) if each])
    if asked.save_facts:
        _save(gathered, asked.save_facts)
    is_different = _show_comparison(asked, gathered, old, used) if old else _show(asked, gathered, used)
    if any(not each.expected for each in gathered.untold):
        return FAILED
    return CHANGES if asked.exit_code and is_different else DONE


def list_samples() -> None:
    """One line for each."""
    from cli.render.samples import samples  # noqa: PLC0415 - needed by nobody else here

    rows = [("PLATFORM", "NODE", "REGION", "ZONE", "INSTANCE TYPE")]
    for platform, node in samples().items():
        said = node.facts.platform
        rows.append((platform, node.name, said.region, said.zone, said.instance_type))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        click.echo("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


def read_config(path: Path) -> ConfigInUse:
    """The config file at that path, or on standard input for `-`. Raises Refused with every mistake."""
    source = "standard input" if str(path) == "-" else str(path)
    content = sys.stdin.buffer.read(MAX_BYTES + 1) if str(path) == "-" else read_config_file(path)
    if isinstance(content, UnreadableFile):
        raise Refused(f"{source}: cannot be read: {content.reason}")
    return judged(content, source)


def judged(content: str | bytes, source: str) -> ConfigInUse:
    """What stands in it. Raises Refused with every mistake."""
    try:
        return config_in_use(content, source)
    except CloudConfigError as error:
        mistakes = collect_findings(error)
    except RulesError as error:
        mistakes = error.findings
    raise Refused("\n".join(finding.format(source) for finding in mistakes))


def _gathered(asked: Asked, used: list[ConfigInUse]) -> Gathered:
    rules = [rule for each in used for rule in each.written.rules]
    resources = _EVERYTHING if asked.save_facts else required_resources(rules)
    prefer_ipv6 = used[0].config.prefer_ipv6
    try:
        return gather(asked.wanted, prefer_ipv6=prefer_ipv6, resources=resources)
    except GatheringError as error:
        raise Refused(str(error)) from None


def _save(gathered: Gathered, path: Path) -> None:
    try:
        path.write_bytes(written(gathered.nodes))
    except OSError as error:
        raise Refused(f"{path}: cannot be written: {error.strerror or error}") from None


def _show(asked: Asked, gathered: Gathered, used: ConfigInUse) -> bool:
    now = datetime.now(UTC)
    console = Console(highlight=False)
    previews = [preview(node, used, now=now) for node in gathered.nodes]
    if asked.as_json:
        print_json(previews_json(previews, gathered.untold, used))
    else:
        for number, each in enumerate(previews):
            print_lines([Line(0, Text())] if number else [], console)
            print_lines(text.of_preview(each, used), console)
        _tell_left_out(gathered.untold)
    return any(changes(each.described.node, each.after) for each in previews)


def _show_comparison(asked: Asked, gathered: Gathered, old: ConfigInUse, new: ConfigInUse) -> bool:
    comparison = compare(gathered.nodes, old, new)
    if asked.as_json:
        print_json(comparison_json(comparison, gathered.untold))
    else:
        print_lines(text.of_comparison(comparison), Console(highlight=False))
        _tell_left_out(gathered.untold)
    return bool(comparison.different)


def _tell_left_out(untold: tuple[Untold, ...]) -> None:
    print_lines(text.of_untold(untold), Console(highlight=False, stderr=True))
