"""What has been said already: thousands of resyncs must not say it again. Kept per Node, for its lifetime."""

from typing import Final

import msgspec

from libs.common.contract.events import Decided
from services.labeler.plan import IN_SYNC_REASON, Notice

MAX_NOTICES: Final = 32  # of one Node: a machine that says something else at each look must not fill us
_WRITTEN_OUTCOMES: Final = frozenset({"initialized", "updated"})


class _NodeHistory(msgspec.Struct):
    uid: str
    last_decision: Decided | None = None
    notices: dict[Notice, None] = msgspec.field(default_factory=dict)  # in the order in which they were given
    rules_generation: int = 0  # which of the rules these notices held by


class EventDeduplicator:
    """Remembers, by Node, the last decision published and the notices given."""

    def __init__(self) -> None:
        self._nodes: dict[str, _NodeHistory] = {}
        self._rules_generation = 0

    def is_new_decision(self, decided: Decided) -> bool:
        """Whether this decision says anything that the last one about that Node did not."""
        last = self._history_of(decided.name, decided.uid).last_decision
        if last is None:
            return True
        if last.outcome in _WRITTEN_OUTCOMES and decided.reason.startswith(IN_SYNC_REASON):
            return False  # our own write came back, nothing more
        return msgspec.structs.replace(decided, decided_at=last.decided_at) != last

    def record_decision(self, decided: Decided) -> None:
        """Keep what has been published."""
        self._history_of(decided.name, decided.uid).last_decision = decided

    def select_new_notices(self, name: str, uid: str, notices: tuple[Notice, ...]) -> tuple[Notice, ...]:
        """Those that have not been given yet."""
        known = self._history_of(name, uid)
        self._forget_resolved_notices(known, notices)
        return tuple(notice for notice in notices if notice not in known.notices)

    def record_notice(self, name: str, uid: str, notice: Notice) -> None:
        """Keep what has been given."""
        notices = self._history_of(name, uid).notices
        notices[notice] = None
        if len(notices) > MAX_NOTICES:
            del notices[next(iter(notices))]

    def on_rules_changed(self) -> None:
        """What the new rules cure is news should it come again."""
        self._rules_generation += 1

    def forget(self, name: str) -> None:
        """The Node is gone."""
        self._nodes.pop(name, None)

    def _forget_resolved_notices(self, history: _NodeHistory, notices: tuple[Notice, ...]) -> None:
        """Once after each change of the rules; else a machine could have the same thing told for ever."""
        if history.rules_generation != self._rules_generation:
            history.rules_generation = self._rules_generation
            history.notices = {notice: None for notice in history.notices if notice in notices}

    def _history_of(self, name: str, uid: str) -> _NodeHistory:
        known = self._nodes.get(name)
        if known is None or known.uid != uid:
            known = self._nodes[name] = _NodeHistory(uid, rules_generation=self._rules_generation)
        return known
