"""What Talos must be asked for beyond every look, by the rules of a file: nothing, for most."""

import re
from collections.abc import Iterable
from typing import Final

from libs.common.cloud_config.fact_fields import FIELDS, FactField, TalosResource, find_field
from libs.common.cloud_config.model import NodeSelectorTerm, Pool, Rule

_BY_NAME: Final = {field.name: field for field in FIELDS if field.resource}
_NAMED: Final = re.compile(rf"\.({'|'.join(_BY_NAME)})\b")


def list_queried_fields(rule: Rule) -> tuple[FactField, ...]:
    """The fields of this rule that need more than every look asks for.

    In templates any mention counts, even in a text: asking once too often changes nothing but the time.
    """
    found = _asked_in(rule.selector)
    for _, entry in rule.entries():
        if "{{" in entry.template:
            found += [_BY_NAME[name] for name in _NAMED.findall(entry.template)]
    return tuple({field.name: field for field in found}.values())


def required_resources(rules: Iterable[Rule]) -> frozenset[TalosResource]:
    """What metadata must ask each machine for, beyond every look, so that these rules can be judged."""
    return frozenset(
        field.resource for rule in rules for field in list_queried_fields(rule) if field.resource
    )


def required_resources_of_pools(pools: Iterable[Pool]) -> frozenset[TalosResource]:
    """The same for pools, so that it can be judged which machines they are for."""
    return frozenset(field.resource for pool in pools for field in _asked_in(pool.selector) if field.resource)


def _asked_in(selector: Iterable[NodeSelectorTerm]) -> list[FactField]:
    keys = [requirement.key for term in selector for requirement in term.requirements]
    return [field for field in map(find_field, keys) if field is not None and field.resource]
