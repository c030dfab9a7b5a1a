"""Finds the Talos resources that the rules of a file need in addition to every poll."""

import re
from collections.abc import Iterable
from typing import Final

from libs.common.cloud_config.fact_fields import FIELDS, FactField, TalosResource, find_field
from libs.common.cloud_config.model import NodeSelectorTerm, Pool, Rule

_BY_NAME: Final = {field.name: field for field in FIELDS if field.is_queried_on_demand}
_NAMED: Final = re.compile(rf"\.({'|'.join(_BY_NAME)})\b")


def list_queried_fields(rule: Rule) -> tuple[FactField, ...]:
    """Return the fields of a rule that need additional resources.

    Any mention in a template counts, even in a text: an unneeded query costs only time.
    """
    found = _fields_in(rule.selector)
    for _, entry in rule.entries():
        if "{{" in entry.template:
            found += [_BY_NAME[name] for name in _NAMED.findall(entry.template)]
    return tuple({field.name: field for field in found}.values())


def required_resources(rules: Iterable[Rule]) -> frozenset[TalosResource]:
    """Return the additional resources that metadata must query to evaluate these rules."""
    return frozenset(
        field.resource for rule in rules for field in list_queried_fields(rule) if field.resource
    )


def requires_system(rules: Iterable[Rule], pools: Iterable[Pool]) -> bool:
    """Return whether metadata must query SystemInformation to evaluate these rules and pools."""
    of_rules = any(field.is_system for rule in rules for field in list_queried_fields(rule))
    return of_rules or any(field.is_system for pool in pools for field in _fields_in(pool.selector))


def required_resources_of_pools(pools: Iterable[Pool]) -> frozenset[TalosResource]:
    """Return the additional resources that metadata must query to evaluate these pools."""
    return frozenset(
        field.resource for pool in pools for field in _fields_in(pool.selector) if field.resource
    )


def _fields_in(selector: Iterable[NodeSelectorTerm]) -> list[FactField]:
    keys = [requirement.key for term in selector for requirement in term.requirements]
    return [field for field in map(find_field, keys) if field is not None and field.is_queried_on_demand]
