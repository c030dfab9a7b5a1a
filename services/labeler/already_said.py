"""What has been said already: thousands of resyncs must not say it again. Kept per Node, for its lifetime."""

from typing import Final

import msgspec

from libs.common.events import Decided
from services.labeler.plan import AS_IT_SHOULD_BE, Notice

MOST_NOTICES: Final = 32  # of one Node: a machine that says something else at each look must not fill us
_WRITTEN: Final = frozenset({"initialized", "updated"})


class _OfNode(msgspec.Struct):
    uid: str
    decided: Decided | None = None
    notices: dict[Notice, None] = msgspec.field(default_factory=dict)  # in the order in which they were given
    rules: int = 0  # which of the rules these notices held by


class AlreadySaid:
    """Remembers, by Node, the last decision published and the notices given."""

    def __init__(self) -> None:
        self._nodes: dict[str, _OfNode] = {}
        self._rules = 0

    def is_news(self, decided: Decided) -> bool:
        """Whether this decision says anything that the last one about that Node did not."""
        last = self._of(decided.name, decided.uid).decided
        if last is None:
            return True
        if last.outcome in _WRITTEN and decided.reason.startswith(AS_IT_SHOULD_BE):
            return False  # our own write came back, nothing more
        return msgspec.structs.replace(decided, decided_at=last.decided_at) != last

    def decided(self, decided: Decided) -> None:
        """Keep what has been published."""
        self._of(decided.name, decided.uid).decided = decided

    def unsaid(self, name: str, uid: str, notices: tuple[Notice, ...]) -> tuple[Notice, ...]:
        """Those that have not been given yet."""
        known = self._of(name, uid)
        self._forget_what_was_cured(known, notices)
        return tuple(notice for notice in notices if notice not in known.notices)

    def said(self, name: str, uid: str, notice: Notice) -> None:
        """Keep what has been given."""
        notices = self._of(name, uid).notices
        notices[notice] = None
        if len(notices) > MOST_NOTICES:
            del notices[next(iter(notices))]

    def rules_changed(self) -> None:
        """What the new rules cure is news should it come again."""
        self._rules += 1

    def forget(self, name: str) -> None:
        """The Node is gone."""
        self._nodes.pop(name, None)

    def _forget_what_was_cured(self, known: _OfNode, notices: tuple[Notice, ...]) -> None:
        """Once after each change of the rules; else a machine could have the same thing told for ever."""
        if known.rules != self._rules:
            known.rules = self._rules
            known.notices = {notice: None for notice in known.notices if notice in notices}

    def _of(self, name: str, uid: str) -> _OfNode:
        known = self._nodes.get(name)
        if known is None or known.uid != uid:
            known = self._nodes[name] = _OfNode(uid, rules=self._rules)
        return known
