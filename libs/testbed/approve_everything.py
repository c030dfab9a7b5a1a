"""Approves every request for a serving certificate unread: the baseline for the cost of decisions."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import msgspec

from libs.testbed.child_process import ChildProcess
from libs.testbed.command_channel import CommandChannel
from libs.testbed.control_plane.build import KUBELETS, build_program
from libs.testbed.kubelets_in_go import ApiServer, GoReply, build_access_flags


class ApprovalCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The number of approvals, and of failed attempts."""

    approved: int
    failed: int


class ApproveEverything:
    """A process of the kubelets program that approves every request for a serving certificate at once."""

    USER: Final = "approve-everything"

    def __init__(self, child: ChildProcess) -> None:
        self.child = child
        self._conversation = CommandChannel(child, GoReply)

    @classmethod
    @contextlib.asynccontextmanager
    async def start(
        cls, run_dir: Path, api: ApiServer, *, concurrency: int = 64
    ) -> AsyncIterator[ApproveEverything]:
        """Start the process as a user with all permissions; it ends with the context."""
        _make(run_dir)
        come_as = build_access_flags(api, *api.client(cls.USER, ["system:masters"]))
        argv: list[str | Path] = [await build_program(KUBELETS), *come_as, "-approve", str(concurrency)]
        child = ChildProcess.start("approve-everything", argv, run_dir, pipes=True)
        approving = cls(child)
        try:
            await approving._conversation.wait_until_ready()
            yield approving
        finally:
            await approving._conversation.close()

    async def count_approvals(self) -> ApprovalCounts:
        """Return the counts since the start."""
        return msgspec.json.decode(
            (await self._conversation.send_command("approved")).result, type=ApprovalCounts
        )


def _make(run_dir: Path) -> None:
    run_dir.mkdir(parents=True, exist_ok=True)
