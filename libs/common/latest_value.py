"""Hands the newest of several values to a task."""

import asyncio
from typing import Generic, TypeVar

ValueT = TypeVar("ValueT")


class LatestValue(Generic[ValueT]):
    """A place for one value. A newer value replaces one that the task has not taken yet."""

    def __init__(self) -> None:
        self._values: list[ValueT] = []  # at most one
        self._has_value = asyncio.Event()

    def put(self, value: ValueT) -> None:
        """Provide the value, in place of an older one."""
        self._values = [value]
        self._has_value.set()

    async def take(self) -> ValueT:
        """Wait for a value, remove it and return it."""
        await self._has_value.wait()
        return self._pop()

    def take_newer(self, taken: ValueT) -> ValueT:
        """Return a value that is newer than the taken one, or the taken one if there is none."""
        return self._pop() if self._values else taken

    def _pop(self) -> ValueT:
        self._has_value.clear()
        return self._values.pop()
