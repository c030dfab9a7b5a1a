"""The values of `ownership` -> which Nodes each controller looks after: a mistake never leads to more."""

import re
from collections.abc import Iterable
from typing import Final

from libs.common.cloud_config.findings import Findings, nearest, shown
from libs.common.cloud_config.kubernetes_names import key_problem
from libs.common.cloud_config.patterns import Patterns
from libs.common.cloud_config.reading import Item, Placed
from libs.common.cloud_config.rule import Ownership, OwnershipOfNodes
from libs.common.cloud_config.rule_reading import read_selector
from libs.common.cloud_config.shape import SCHEME
from libs.common.controllers import NAMES_OF_NODES, proper_name
from libs.common.platforms import PLATFORMS

_SCHEME: Final = re.compile(SCHEME)


def read_ownership(item: Item | None, findings: Findings, patterns: Patterns) -> OwnershipOfNodes:
    """What these values say; mistakes are told to the findings."""
    if item is None:
        return OwnershipOfNodes()
    of_controllers: dict[str, Ownership] = {}
    said: Iterable[Item] = item.values.get("controllers", ())
    for each in said:
        name = _controller(each, of_controllers, findings)
        ownership = _ownership(each, findings, patterns)
        if name:
            of_controllers[name] = ownership
    return OwnershipOfNodes(of_all=_ownership(item, findings, patterns), of_controllers=of_controllers)


def _ownership(item: Item, findings: Findings, patterns: Patterns) -> Ownership:
    return Ownership(
        selector=read_selector(item, findings, patterns, read_key=_label_key),
        provider_id_schemes=_schemes(item, findings),
    )


def _label_key(item: Item, findings: Findings) -> str:
    """As it is written: letter case counts in labels."""
    key: str = item.values.get("key", "")
    if "key" in item.values and (problem := key_problem(key)):
        told = f'is "{shown(key)}", which no label is called: {problem}'
        findings.mistake(item.line, f"{item.path}.key", told)
    return key


def _schemes(item: Item, findings: Findings) -> tuple[str, ...]:
    said: Iterable[Placed] = item.values.get("providerIDSchemes", ())
    found = []
    for each in said:
        if not _SCHEME.fullmatch(each.text):
            told = f'is "{shown(each.text)}", not what stands before :// in a providerID, such as hcloud'
            findings.mistake(each.line, each.path, told)
        elif each.text in found:
            findings.warn(each.line, each.path, f"is {shown(each.text)} once more")
        else:
            found.append(each.text)
        if not_the_scheme := _not_the_scheme(each.text):
            findings.warn(each.line, each.path, f"is {each.text}, a platform: {not_the_scheme}")
    return tuple(found)


def _not_the_scheme(name: str) -> str:
    """Why providerIDs of that platform do not begin with its name; "" if they do, or it is no platform."""
    platform = PLATFORMS.get(name)
    if platform is None or platform.scheme == name:
        return ""
    if platform.scheme:
        return f"its providerIDs begin with {platform.scheme}://"
    return f"its providerIDs ({platform.provider_id}) have no scheme; select its Nodes by nodeSelector"


def _controller(item: Item, others: Iterable[str], findings: Findings) -> str:
    """Its proper name, "" where there is none."""
    said: Placed | None = item.values.get("name")
    if said is None:
        return ""  # a mistake, and told
    name = proper_name(said.text)
    if said.text not in NAMES_OF_NODES:
        near = nearest(said.text, NAMES_OF_NODES)
        told = f'is "{shown(said.text)}", not one of {", ".join(NAMES_OF_NODES)}{near}'
        findings.mistake(said.line, said.path, told)
        return ""
    if name in others:
        findings.mistake(said.line, said.path, f"is {said.text}, of which something was said before it")
    return name
