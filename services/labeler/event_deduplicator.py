"""Remembers published notices for the lifetime of a Node, so that a resync repeats none."""

from typing import Final

import msgspec

from services.labeler.plan import Notice

MAX_NOTICES: Final = 32  # per Node: a machine whose report changes at each poll must not fill the memory


class _NodeHistory(msgspec.Struct):
    uid: str
    notices: dict[Notice, None] = msgspec.field(default_factory=dict)  # oldest first
    rules_generation: int = 0  # the generation of the rules that caused these notices


class EventDeduplicator:
    """Remembers the published notices of each Node."""

    def __init__(self) -> None:
        self._nodes: dict[str, _NodeHistory] = {}
        self._rules_generation = 0

    def select_new_notices(self, name: str, uid: str, notices: tuple[Notice, ...]) -> tuple[Notice, ...]:
        """Return the notices that have not been published yet."""
        history = self._history_of(name, uid)
        self._forget_resolved_notices(history, notices)
        return tuple(notice for notice in notices if notice not in history.notices)

    def record_notice(self, name: str, uid: str, notice: Notice) -> None:
        """Remember a published notice; forget the oldest one beyond MAX_NOTICES."""
        notices = self._history_of(name, uid).notices
        notices[notice] = None
        if len(notices) > MAX_NOTICES:
            del notices[next(iter(notices))]

    def on_rules_changed(self) -> None:
        """Let notices that the new rules resolve be published again if they recur."""
        self._rules_generation += 1

    def forget(self, name: str) -> None:
        """Forget a deleted Node."""
        self._nodes.pop(name, None)

    def _forget_resolved_notices(self, history: _NodeHistory, notices: tuple[Notice, ...]) -> None:
        """Forget resolved notices, once per change of the rules.

        Without that limit, a machine that alternates between two states would repeat the same notice.
        """
        if history.rules_generation != self._rules_generation:
            history.rules_generation = self._rules_generation
            history.notices = {notice: None for notice in history.notices if notice in notices}

    def _history_of(self, name: str, uid: str) -> _NodeHistory:
        history = self._nodes.get(name)
        if history is None or history.uid != uid:
            history = self._nodes[name] = _NodeHistory(uid, rules_generation=self._rules_generation)
        return history
