"""The effects of the rules on one machine, with a reason for every entry that was skipped."""

from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from libs.common.contract.machine import PlatformMetadata
from libs.common.contract.node import Taint

EffectKind = Literal["label", "annotation", "taint", "platformMetadata"]
RetainedKind = Literal["label", "annotation", "taint", "platformMetadata", "feature"]
PROVIDER_ID_KEY: Final = ("platformMetadata", "provider_id")  # kind and key of entries, and in `retained`


class EntryResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one key of a rule that matched."""

    kind: EffectKind
    key: str  # as in the file; for metadata, Go's name
    rendered: str = ""  # the result of the template, unchanged
    value: str = ""  # the desired value, trimmed and sanitized; a later rule may override it
    problem: str = ""  # why the entry is skipped, in one line; "" if `value` is the desired one


class RuleResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one rule for the machine. All keys of a rule that was not evaluated are retained."""

    rule: str  # its title
    index: int  # in the file's list, from 0
    is_matched: bool
    reason: str  # why it matched, did not match or could not be evaluated
    is_evaluated: bool = True
    entries: tuple[EntryResult, ...] = ()  # only if the rule matched; in order of application


class RuleEffects(msgspec.Struct, frozen=True, kw_only=True):
    """The values that all rules set for one machine; a key neither set nor retained is not desired."""

    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()  # one for each key
    platform: PlatformMetadata  # as Talos reported it, with the overrides
    public_ip_discovery: bool = False
    # (kind, key) that could not be evaluated: the template failed, the value is invalid, or metadata has not
    # requested a field. Such a key is neither set nor removed. Taints: by key, whatever the effect.
    # Metadata: by the field of PlatformMetadata; `platform` then has the value from Talos. A retained
    # providerID must not be written, because it is immutable. ("feature", "publicIPDiscovery"): the addresses
    # stay unchanged.
    retained: frozenset[tuple[RetainedKind, str]] = frozenset()
    results: tuple[RuleResult, ...] = ()
    exhausted_by: RuleResult | None = None  # the rule that exceeded the budget; it and later ones are skipped
    failures: int = 0  # failed templates, for talosccm_transformer_errors_total

    def list_skipped(self) -> Iterator[tuple[str, EntryResult]]:
        """Yield each skipped entry with the title of its rule."""
        return ((rule.rule, entry) for rule in self.results for entry in rule.entries if entry.problem)
