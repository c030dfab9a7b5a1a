"""Collects the effects of rules in the order of the file; a later rule overrides the keys of earlier ones."""

from typing import Any, Final

import msgspec

from libs.common.cloud_config.findings import truncate_line
from libs.common.contract.machine import PlatformMetadata
from libs.common.contract.node import Taint
from services.labeler.core.rules.bounds import MAX_ANNOTATIONS, MAX_SKIPPED_ENTRIES
from services.labeler.core.rules.effects import (
    EffectKind,
    RetainedKind,
    RuleEffects,
    RuleResult,
    SkippedEntry,
)
from services.labeler.core.rules.value_validation import InvalidValueError

Value = str | bool | Taint
_MAX_VALUE_LENGTH: Final = 100  # characters of a value
_MAX_REASON_LENGTH: Final = 600


class EffectCollector:
    """The effects of the rules that have been applied so far."""

    def __init__(self) -> None:
        self._values: dict[EffectKind, dict[str, Any]] = {
            "annotation": {}, "label": {}, "taint": {}, "platformMetadata": {},
        }  # fmt: skip
        self._annotation_bytes = 0
        self._retained: set[tuple[RetainedKind, str]] = set()
        self._skipped: list[SkippedEntry] = []
        self._unreported_count = 0
        self._discovery = False
        self.failures = 0

    def set_value(self, kind: EffectKind, key: str, value: Value) -> None:
        """Set the key, over earlier rules. Raises InvalidValueError if annotations exceed MAX_ANNOTATIONS."""
        values = self._values[kind]
        if kind == "annotation":
            assert isinstance(value, str)
            total = self._annotation_bytes + _size(key, value) - _size(key, values.get(key))
            if total > MAX_ANNOTATIONS:
                raise InvalidValueError(
                    f"the annotations of all rules together have more than {MAX_ANNOTATIONS} bytes"
                )
            self._annotation_bytes = total
        values[key] = value
        self._retained.discard((kind, key))

    def set_public_ip_discovery(self, is_enabled: bool) -> None:
        """Set whether public addresses on the machine's links become external addresses."""
        self._discovery = is_enabled
        self._retained.discard(("feature", "publicIPDiscovery"))

    def retain(self, kind: RetainedKind, key: str) -> None:
        """Mark the key as not evaluated and drop its value from earlier rules."""
        self._retained.add((kind, key))
        if kind == "feature":
            return
        earlier = self._values[kind].pop(key, None)
        if kind == "annotation":
            self._annotation_bytes -= _size(key, earlier)

    def skip(self, rule: str, kind: EffectKind | None, key: str, value: str, reason: str) -> None:
        """Record a skipped entry or, if `kind` is None, a skipped rule; beyond a limit, only count it."""
        if len(self._skipped) == MAX_SKIPPED_ENTRIES:
            self._unreported_count += 1
            return
        skipped = SkippedEntry(
            rule,
            kind or "selector",
            key,
            truncate_line(value, _MAX_VALUE_LENGTH),
            truncate_line(reason, _MAX_REASON_LENGTH),
        )
        self._skipped.append(skipped)

    def build_effects(self, platform: PlatformMetadata, results: tuple[RuleResult, ...]) -> RuleEffects:
        """Return the effects of all rules; `platform` is the metadata that Talos reported."""
        if self._unreported_count:
            last = self._skipped[-1]
            more = f"{last.reason}; {self._unreported_count} more were skipped"
            self._skipped[-1] = msgspec.structs.replace(last, reason=more)
        values = self._values
        overrides = values["platformMetadata"]
        return RuleEffects(
            labels=values["label"],
            annotations=values["annotation"],
            taints=tuple(values["taint"].values()),
            platform=msgspec.structs.replace(platform, **overrides) if overrides else platform,
            public_ip_discovery=self._discovery,
            retained=frozenset(self._retained),
            skipped=tuple(self._skipped),
            results=results,
            failures=self.failures,
        )


def _size(key: str, value: str | None) -> int:
    return 0 if value is None else len(key) + len(value.encode())
