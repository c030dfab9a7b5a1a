"""Waits for the ends of actions. One request polls many of them."""

import asyncio
import contextlib
from typing import Final

from libs.clouds.hcloud.balancers.action_times import ActionTimes
from libs.clouds.hcloud.balancers.documents import Action
from libs.clouds.hcloud.hcloud_api import HcloudApi
from libs.clouds.instances import Unanswered

_MOST_IDS: Final = 25  # of one request
_PATIENCE_SECONDS: Final = 1.0  # after a request that was not answered


class _RunningAction:
    """An action that is waited for; all times are monotonic."""

    def __init__(self, action: Action, started: float, due: float) -> None:
        self.action = action
        self.started = started
        self.due: float | None = due  # of the next request; None while one is under way
        self.last_running = 0.0  # seconds after the start
        self.was_polled = asyncio.Event()


class ActionWaiter:
    """Polls running actions: the request for one that is due includes those that are due next."""

    def __init__(self, api: HcloudApi, *, first_poll_seconds: float) -> None:
        self._api = api
        self._times = ActionTimes(first_poll_seconds)
        self._running: dict[int, _RunningAction] = {}

    async def wait_for(self, action: Action, deadline: float) -> Action:
        """Return the action when it has ended, or as it was last seen before the deadline."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        wait = min(self._times.seconds_until_first(action.command), (deadline - started) / 2)
        running = _RunningAction(action, started, started + wait)
        self._running[action.id] = running
        try:
            while running.action.status == "running" and loop.time() < deadline:
                if running.due is not None and running.due <= loop.time():
                    await self._poll(deadline)
                else:
                    running.was_polled.clear()
                    await _wait_until(running.was_polled, min(running.due or deadline, deadline))
        finally:
            del self._running[action.id]
        return running.action

    async def _poll(self, deadline: float) -> None:
        waiting = [(each.due, number) for number, each in self._running.items() if each.due is not None]
        polled = {number: self._running[number] for _, number in sorted(waiting)[:_MOST_IDS]}
        dues = {number: each.due for number, each in polled.items()}
        for each in polled.values():
            each.due = None
        answers: dict[int, Action] = {}
        try:
            found = await self._api.get_some("/actions", polled, Action, deadline=deadline)
            answers = {} if isinstance(found, Unanswered) else {each.id: each for each in found}
        finally:  # the others are still there if this one is cancelled
            for number, running in polled.items():
                self._record(running, answers.get(number), dues[number] or 0.0)

    def _record(self, running: _RunningAction, answer: Action | None, due: float) -> None:
        now = asyncio.get_running_loop().time()
        elapsed, command = now - running.started, running.action.command
        if answer is None:
            running.due = now + _PATIENCE_SECONDS
        elif answer.status == "running":
            step = self._times.seconds_until_next(command, elapsed, running=len(self._running))
            running.due, running.last_running = max(due, now + step), elapsed
        else:
            running.action = answer
            self._times.record(command, elapsed, last_running=running.last_running)
        running.was_polled.set()


async def _wait_until(event: asyncio.Event, when: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(when):
            await event.wait()
