"""Of which machines metadata has yet to speak before blocks are claimed: each may hold an address in one."""

from services.ipam.known_nodes import KnownNodes


class FirstWords:
    """The Nodes that were there when all that the stream holds was known, and of which it said nothing.

    After a wiped stream that is everybody. A Node without provided-node-ip is not among them: metadata asks
    nobody about it, and never says a word. Who joins later is not waited for: it waits itself.
    """

    def __init__(self, known: KnownNodes) -> None:
        self._known = known
        self._awaited: dict[str, str] | None = None  # uid by name; None until the flow was complete

    @property
    def expected(self) -> bool:
        """Whether it is known of whom there has to be a word."""
        return self._awaited is not None

    @property
    def missing(self) -> bool:
        """Whether somebody has yet to be spoken of."""
        return bool(self._awaited)

    def expect(self) -> None:
        """All that the stream holds is known now: of whoever it says nothing, there has to be a word."""
        self._awaited = self._known.silent()

    def void(self) -> None:
        """Another stream, which holds nothing, or the same one without what has grown too old in it."""
        self._awaited = None

    def news_of(self, name: str) -> bool:
        """Something was said of that Node. Whether now, and not before, every awaited word is there."""
        if not self._awaited or name not in self._awaited or self._known.is_silent(name, self._awaited[name]):
            return False
        del self._awaited[name]
        return not self._awaited

    def why_not(self) -> str:
        """Whom nobody can be given blocks before; "" if they can."""
        if not self._awaited:
            return ""
        count = len(self._awaited)
        machines = f"{count} machines" if count > 1 else "1 machine"
        return f"waits for metadata's first word on {machines}, such as {min(self._awaited)}"
