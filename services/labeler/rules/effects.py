"""What the rules make of one machine, with the reason for everything that they did not do."""

from typing import Literal

import msgspec

from libs.common.contract.machine import PlatformMetadata
from libs.common.contract.node import Taint

EffectKind = Literal["label", "annotation", "taint", "platformMetadata"]
RetainedKind = Literal["label", "annotation", "taint", "platformMetadata", "feature"]


class SkippedEntry(msgspec.Struct, frozen=True):
    """Something that a rule should have done and that was left out; its texts fit into an Event."""

    rule: str  # its title
    kind: Literal["label", "annotation", "taint", "platformMetadata", "selector"]  # selector: the whole rule
    key: str  # as the file writes it; metadata by Go's name
    value: str  # what the template gave, shortened; "" if it gave nothing
    reason: str


class EntryResult(msgspec.Struct, frozen=True, kw_only=True):
    """One key of a rule that matched: what its template gave, and what became of it."""

    kind: EffectKind
    key: str  # as in Skipped
    rendered: str = ""  # what the template gave, word for word
    value: str = ""  # what is wanted: trimmed, sanitised; a later rule may override it
    problem: str = ""  # why nothing is wanted; "" when `value` is


class RuleResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one rule says of the machine. Of a rule that was not judged all keys are retained."""

    rule: str  # its title
    index: int  # in the file's list, from 0
    is_matched: bool
    reason: str  # in words: why it matched, why not, or why it could not be judged
    is_evaluated: bool = True
    entries: tuple[EntryResult, ...] = ()  # of a rule that matched, in the order in which they are applied


class RuleEffects(msgspec.Struct, frozen=True, kw_only=True):
    """All that the rules want of the Node; a key is wanted, retained, or neither: then it is not wanted."""

    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()  # one for each key
    platform: PlatformMetadata  # as Talos reported it, with the overrides
    public_ip_discovery: bool = False
    # (kind, key) of what could not be judged this time: its template failed, its value is none, its rule
    # needs what Talos was not asked for. Neither set nor removed. Taints: by key, whatever the effect.
    # Metadata: by the field of PlatformMetadata, where `platform` then has Talos's own value; a providerID,
    # which cannot be taken back, must not be written. ("feature", "publicIPDiscovery"): addresses stay.
    retained: frozenset[tuple[RetainedKind, str]] = frozenset()
    skipped: tuple[SkippedEntry, ...] = ()  # a bounded number
    results: tuple[RuleResult, ...] = ()
    failures: int = 0  # templates that failed: talosccm_transformer_errors_total
