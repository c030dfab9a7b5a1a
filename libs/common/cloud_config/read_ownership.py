"""Reads the section `ownership`. A mistake never makes a controller manage more Nodes."""

import re
from collections.abc import Iterable
from typing import Final

from libs.common.cloud_config.file_keys import SCHEME
from libs.common.cloud_config.findings import Findings, suggest_name, truncate_line
from libs.common.cloud_config.kubernetes_names import key_problem
from libs.common.cloud_config.mapping_reader import LocatedText, ParsedMapping
from libs.common.cloud_config.model import Ownership, OwnershipConfig
from libs.common.cloud_config.patterns import PatternBudget
from libs.common.cloud_config.read_rule import read_selector
from libs.common.contract.controllers import NODE_CONTROLLER_NAMES, canonical_name
from libs.common.contract.platforms import PLATFORMS

_SCHEME: Final = re.compile(SCHEME)


def read_ownership(
    item: ParsedMapping | None, findings: Findings, patterns: PatternBudget
) -> OwnershipConfig:
    """Return the ownership; report mistakes to `findings`."""
    if item is None:
        return OwnershipConfig()
    of_controllers: dict[str, Ownership] = {}
    written: Iterable[ParsedMapping] = item.values.get("controllers", ())
    for each in written:
        name = _controller(each, of_controllers, findings)
        ownership = _ownership(each, findings, patterns)
        if name:
            of_controllers[name] = ownership
    return OwnershipConfig(default=_ownership(item, findings, patterns), by_controller=of_controllers)


def _ownership(item: ParsedMapping, findings: Findings, patterns: PatternBudget) -> Ownership:
    return Ownership(
        selector=read_selector(item, findings, patterns, read_key=_label_key),
        provider_id_schemes=_schemes(item, findings),
    )


def _label_key(item: ParsedMapping, findings: Findings) -> str:
    """Return the key as written: labels are case-sensitive."""
    key: str = item.values.get("key", "")
    if "key" in item.values and (problem := key_problem(key)):
        message = f'is "{truncate_line(key)}", which is not a valid label key: {problem}'
        findings.add_mistake(item.line, f"{item.path}.key", message)
    return key


def _schemes(item: ParsedMapping, findings: Findings) -> tuple[str, ...]:
    written: Iterable[LocatedText] = item.values.get("providerIDSchemes", ())
    found = []
    for each in written:
        if not _SCHEME.fullmatch(each.text):
            message = f'is "{truncate_line(each.text)}", not the scheme of a providerID, such as hcloud'
            findings.add_mistake(each.line, each.path, message)
        elif each.text in found:
            findings.add_warning(each.line, each.path, f"is {truncate_line(each.text)}, a duplicate")
        else:
            found.append(each.text)
        if not_the_scheme := _not_the_scheme(each.text):
            findings.add_warning(each.line, each.path, f"is {each.text}, a platform: {not_the_scheme}")
    return tuple(found)


def _not_the_scheme(name: str) -> str:
    """Return why providerIDs of that platform do not begin with its name; "" if they do."""
    platform = PLATFORMS.get(name)
    if platform is None or platform.scheme == name:
        return ""
    if platform.scheme:
        return f"its providerIDs begin with {platform.scheme}://"
    return f'its providerIDs ({platform.provider_id}) have no scheme, which "none" selects'


def _controller(item: ParsedMapping, others: Iterable[str], findings: Findings) -> str:
    """Return the canonical name of the controller, "" without a valid one."""
    written: LocatedText | None = item.values.get("name")
    if written is None:
        return ""  # already reported
    name = canonical_name(written.text)
    if written.text not in NODE_CONTROLLER_NAMES:
        near = suggest_name(written.text, NODE_CONTROLLER_NAMES)
        message = f'is "{truncate_line(written.text)}", not one of {", ".join(NODE_CONTROLLER_NAMES)}{near}'
        findings.add_mistake(written.line, written.path, message)
        return ""
    if name in others:
        findings.add_mistake(
            written.line, written.path, f"is {written.text}, which an earlier entry configures"
        )
    return name
