"""Approves every request for a serving certificate unread: the baseline for the cost of decisions."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import msgspec

from libs.testbed.child_process import ChildProcess
from libs.testbed.command_channel import CommandChannel, open_channel
from libs.testbed.kubelets_in_go import ApiServer, GoReply, start_kubelets_program


class ApprovalCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The number of approvals, and of failed attempts."""

    approved: int
    failed: int


class ApproveEverything:
    """A process of the kubelets program that approves every request for a serving certificate at once."""

    USER: Final = "approve-everything"

    def __init__(self, child: ChildProcess, channel: CommandChannel[GoReply]) -> None:
        self.child = child
        self._channel = channel

    @classmethod
    @contextlib.asynccontextmanager
    async def start(
        cls, run_dir: Path, api: ApiServer, *, concurrency: int = 64
    ) -> AsyncIterator[ApproveEverything]:
        """Start the process as a user with all permissions; it ends with the context."""
        credentials = api.client(cls.USER, ["system:masters"])
        flags = ("-approve", str(concurrency))
        child = await start_kubelets_program("approve-everything", run_dir, api, credentials, *flags)
        async with open_channel(child, GoReply) as channel:
            yield cls(child, channel)

    async def count_approvals(self) -> ApprovalCounts:
        """Return the counts since the start."""
        return msgspec.json.decode((await self._channel.send_command("approved")).result, type=ApprovalCounts)
