"""The ID of the stream, as this process last read it."""

import asyncio


class CurrentStream:
    """Tells those who pull from the stream that another one has taken its place."""

    def __init__(self) -> None:
        self.id = ""  # creation time of the stream; "" while none is known
        self.changed = asyncio.Event()  # set and replaced when the ID changes

    def record(self, stream_id: str) -> None:
        """Record the ID that the server returned."""
        if stream_id != self.id:
            self.id = stream_id
            self.changed.set()
            self.changed = asyncio.Event()

    def record_lost(self) -> None:
        """Record that there is no stream."""
        self.id = ""

    async def wait_until_replaced(self, known: str) -> None:
        """Return when there is another ID than `known`, or with "" another than the first one."""
        while self.id in ("", known) or not known:
            known = known or self.id
            await self.changed.wait()
