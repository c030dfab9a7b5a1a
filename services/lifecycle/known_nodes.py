"""Nodes, metadata's last words of them, and the histories of looks; kept up to date as it is heard."""

from libs.common.node import Node
from libs.common.system_uuid import canonical_uuid
from services.lifecycle.decide import Case
from services.lifecycle.evidence import Known, Word, is_ready, names_borne, shows_life
from services.lifecycle.history import History, look_of, with_look


class KnownNodes:
    """By name. What contradicts a history ends it."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._words: dict[str, Word] = {}
        self._histories: dict[str, History] = {}
        self._by_uuid: dict[str, set[str]] = {}
        self._borne: dict[str, set[str]] = {}
        self.known = Known(nodes_by_uuid=self._by_uuid, borne=self._borne)

    def node(self, name: str) -> Node | None:
        """As the watcher saw it last."""
        return self._nodes.get(name)

    def names(self) -> list[str]:
        """Of all Nodes."""
        return list(self._nodes)

    def case(self, node: Node) -> Case:
        """All that is known about it; `node` may be newer than what the watcher saw."""
        return Case(
            node=node,
            word=self._words.get(node.name),
            history=self._histories.get(node.name),
            known=self.known,
        )

    def history(self, name: str) -> History | None:
        """The looks that were not contradicted."""
        return self._histories.get(name)

    def proving(self) -> int:
        """How many Nodes there are in whose place others answer."""
        return len(self._histories)

    # ---- what is heard

    def observed(self, node: Node) -> None:
        """How the Node is now."""
        before = self._nodes.get(node.name)
        if before is not None and (before.uid != node.uid or shows_life(before, node)):
            self.forget_history(node.name)
        if before is not None:
            _leave(self._by_uuid, _uuid_of(before), node.name)
        self._nodes[node.name] = node
        if uuid := _uuid_of(node):
            self._by_uuid.setdefault(uuid, set()).add(node.name)

    def gone(self, name: str) -> None:
        """There is no such Node any more."""
        before = self._nodes.pop(name, None)
        if before is not None:
            _leave(self._by_uuid, _uuid_of(before), name)
        self.forget_history(name)

    def said(self, word: Word, heard: float) -> None:
        """Metadata's word; `heard` by our monotonic clock."""
        name = word.node.name
        self.unsaid(name)
        self._words[name] = word
        for borne in names_borne(word):
            self._borne.setdefault(borne, set()).add(name)
            self.forget_history(borne)  # a machine bears that name: what was seen of its Node is contradicted
        look = look_of(word, heard)
        node = self._nodes.get(name)
        if look is None or node is None or node.uid != word.node.uid or is_ready(node):
            self.forget_history(name)
        else:
            self._histories[name] = with_look(self._histories.get(name), node.uid, look)

    def unsaid(self, name: str) -> None:
        """Metadata's word is void, or replaced; what it proved is judged by the next one."""
        word = self._words.pop(name, None)
        if word is not None:
            for borne in names_borne(word):
                _leave(self._borne, borne, name)

    def enriched_gone(self, name: str) -> None:
        """Metadata has nothing to say of it any more."""
        self.unsaid(name)
        self.forget_history(name)

    def forget_history(self, name: str) -> None:
        """What was seen of it counts no more."""
        self._histories.pop(name, None)

    def forget_histories(self) -> None:
        """What was seen counts no more: something may have been missed."""
        self._histories.clear()

    def clear(self) -> None:
        """Everything known is void."""
        for known in (self._nodes, self._words, self._histories, self._by_uuid, self._borne):
            known.clear()


def _uuid_of(node: Node) -> str:
    return canonical_uuid(node.status.node_info.system_uuid)


def _leave(index: dict[str, set[str]], key: str, name: str) -> None:
    names = index.get(key)
    if names is not None:
        names.discard(name)
        if not names:
            del index[key]
