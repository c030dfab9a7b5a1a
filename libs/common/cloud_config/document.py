"""Parses the file into a CloudConfig, or reports every mistake with file, line and path."""

import yaml

from libs.common.cloud_config.file_keys import FILE_KEYS
from libs.common.cloud_config.findings import Findings
from libs.common.cloud_config.mapping_reader import (
    MAX_YAML_NODES,
    FileTooLarge,
    MappingReader,
    ParsedMapping,
)
from libs.common.cloud_config.model import CloudConfig, Finding
from libs.common.cloud_config.read_rule import read_rule
from libs.common.cloud_config.read_sections import read_external_ips, read_ownership, read_pools
from libs.common.cloud_config.selectors import PatternBudget
from libs.common.safe_yaml import YamlError, compose_yaml


class CloudConfigError(Exception):
    """The file is invalid."""

    def __init__(self, source: str, findings: tuple[Finding, ...], read: CloudConfig | None = None) -> None:
        self.source = source
        self.findings = findings
        self.read = read  # the valid part, only to find further mistakes
        self.mistakes = [finding.format(source) for finding in findings]  # one sentence each
        super().__init__("; ".join(self.mistakes))


def parse_cloud_config(text: str | bytes, source: str) -> CloudConfig:
    """Parse the text of a file; `source` names it in messages. Raises CloudConfigError with every mistake."""
    try:
        root = compose_yaml(text)
    except YamlError as error:
        found = Finding(line=error.line, problem=error.problem)
        raise CloudConfigError(source, (found,)) from None
    if root is None:
        return CloudConfig()
    findings = Findings()
    try:
        config = _read(root, findings)
    except FileTooLarge:
        too_large = Finding(problem=f"it has more than {MAX_YAML_NODES} values, with its aliases expanded")
        raise CloudConfigError(source, (too_large,)) from None
    if findings.mistakes:
        raise CloudConfigError(source, findings.mistakes, read=config)
    return config


def _read(root: yaml.Node, findings: Findings) -> CloudConfig:
    top = MappingReader(findings).mapping(root, FILE_KEYS, "").values
    cluster = top["global"].values if "global" in top else {}
    external_ips: ParsedMapping | None = cluster.get("externalIPs")
    patterns = PatternBudget()
    rules = tuple(read_rule(item, findings, patterns) for item in top.get("transformations", ()))
    ipam = top["ipam"].values if "ipam" in top else {}
    for item in (external_ips, top.get("ipam"), top.get("ownership")):
        if item is not None and item.values:
            findings.add_difference(item.line, item.path, "is unknown to the reference, which ignores it")
    return CloudConfig(
        cluster_name=cluster.get("clusterName"),
        prefer_ipv6=cluster.get("preferIPv6"),
        external_ips=read_external_ips(external_ips),
        rules=rules,
        pools=read_pools(ipam.get("pools", ()), findings, patterns),
        ownership=read_ownership(top.get("ownership"), findings, patterns),
        warnings=findings.warnings,
        differences=findings.differences,
    )
