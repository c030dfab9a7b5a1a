"""A config file, read, parsed and compiled as in the labeler."""

import sys
from pathlib import Path

import msgspec

from cli.command_exit import CommandError
from cli.progress import PROGRESS
from libs.common.cloud_config.document import CloudConfigError, parse_cloud_config
from libs.common.cloud_config.model import CloudConfig
from libs.common.contract.controllers import CLOUD_NODE
from libs.common.safe_yaml import MAX_BYTES
from libs.common.settings.cloud_config_reloader import UnreadableFile, read_config_file
from services.labeler.core.plan.plan import ClusterConfig
from services.labeler.core.rules.compilation import RulesError, collect_findings, compile_rules


class CompiledConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One file, parsed and compiled."""

    source: str
    document: CloudConfig
    config: ClusterConfig

    def get_template(self, rule: int, kind: str, key: str) -> str:
        """Return the template of that key of a rule; "" if there is none."""
        found = next((each for each in self.document.rules if each.index == rule), None)
        for entry_kind, entry in found.entries() if found else ():
            if entry_kind.rstrip("s") == kind and _normalize_key(entry.key) == _normalize_key(key):
                return entry.template
        return ""


def read_input(path: Path) -> tuple[str, bytes | UnreadableFile]:
    """Return the name for messages and the content of the file; `-` is standard input."""
    if path.is_fifo():  # such as <(command) of a shell
        return str(path), UnreadableFile("it is not a regular file: give - to read standard input")
    if str(path) != "-":
        return str(path), read_config_file(path)
    if sys.stdin.isatty():
        PROGRESS.end()  # the user types
    return "standard input", sys.stdin.buffer.read(MAX_BYTES + 1)


def read_config(path: Path) -> CompiledConfig:
    """Read the file at that path, or standard input for `-`. Raises CommandError with every mistake."""
    source, content = read_input(path)
    if isinstance(content, UnreadableFile):
        raise CommandError(f"{source}: cannot be read: {content.reason}")
    return parse_config(content, source)


def parse_config(content: str | bytes, source: str) -> CompiledConfig:
    """Parse and compile a file. Raises CommandError with every mistake."""
    try:
        return compile_config(content, source)
    except CloudConfigError as error:
        mistakes = collect_findings(error)
    except RulesError as error:
        mistakes = error.findings
    raise CommandError("\n".join(finding.format(source) for finding in mistakes))


def compile_config(text: str | bytes, source: str) -> CompiledConfig:
    """Parse and compile a file. Raises CloudConfigError or RulesError with all known mistakes."""
    written = parse_cloud_config(text, source)
    config = ClusterConfig(
        cluster_name=written.cluster_name or "",
        prefer_ipv6=bool(written.prefer_ipv6),
        external_ips=written.external_ips,
        rules=compile_rules(written),
        ownership=written.ownership.for_controller(CLOUD_NODE),
    )
    return CompiledConfig(source=source, document=written, config=config)


def _normalize_key(key: str) -> str:
    """Normalize a metadata key: the parser uses field names, results use Go's names."""
    return key.replace("_", "").lower()
