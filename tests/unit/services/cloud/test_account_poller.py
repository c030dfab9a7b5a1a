"""How long new Nodes wait for their first report: each request takes 0.1 s, and a minute has 20 of them."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

import msgspec
import pytest

from libs.clouds.instances import Anchor, Credential, Instance, NotFound, RateLimit, Unanswered
from libs.clouds.request_budget import REQUESTS_PER_MINUTE, RequestBudget
from libs.common.contract.events import AnyInstanceEvent, InstanceExists
from libs.common.contract.instances import InstanceAnchor
from libs.common.contract.node import NodeCondition
from libs.common.observability import metrics
from services.cloud.account_poller import ANCHOR_NOT_SOUGHT, AccountPoller
from services.cloud.core.instance_schedule import MAX_PER_ROUND, QueryIntervals
from services.cloud.core.judge_round import Query
from services.cloud.core.node_table import NodeTable
from tests.builders import NOW, STREAM_ID, make_node
from tests.clocks import VirtualClock, run_virtually
from tests.clouds.cloud_rounds import make_instance

PER_PAGE = 50


class BudgetedCloud:
    """Instances, listed in pages, within the budget of an adapter."""

    credential = Credential(generation=1, loaded_at=NOW, fingerprint="f")
    rate_limit: RateLimit | None = None

    def __init__(self) -> None:
        self.instances: dict[str, Instance] = {}
        self.unlisted: set[str] = set()  # by which lists are behind
        self.lists = 0
        self.anchor: Anchor | Unanswered | None = Anchor("network", "1")
        self._budget = RequestBudget()
        self._one_at_a_time = asyncio.Lock()

    async def _send(self) -> None:
        async with self._one_at_a_time:
            now = asyncio.get_running_loop().time
            await asyncio.sleep(self._budget.seconds_until_allowed(now()))
            self._budget.count_request(now())
            await asyncio.sleep(0.1)

    def parse_provider_id(self, provider_id: str) -> str | None:
        return provider_id.removeprefix("hcloud://") or None

    async def list_instances(self) -> tuple[Instance, ...]:
        self.lists += 1
        listed = tuple(each for each in self.instances.values() if each.id not in self.unlisted)
        for _ in range(0, len(listed), PER_PAGE):
            await self._send()
        return listed

    async def get_instance(self, instance_id: str) -> Instance | NotFound:
        await self._send()
        return self.instances.get(instance_id, NotFound())

    async def find_by_name(self, name: str) -> tuple[Instance, ...]:
        await self._send()
        return tuple(each for each in self.instances.values() if each.name == name)

    async def find_anchor(self) -> Anchor | Unanswered | None:
        await self._send()
        return self.anchor

    async def get_anchor(self, anchor: Anchor) -> Anchor:
        await self._send()
        return anchor

    async def close(self) -> None:
        pass


class Account:
    """The poller of an account, and when each Node got its first report."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.set_back = timedelta()  # of the time of day
        self.cloud = BudgetedCloud()
        self.nodes = NodeTable("prod", self.cloud.parse_provider_id)
        self.answered_at: dict[str, float] = {}
        self.is_answered = asyncio.Event()  # of all Nodes
        self.poller = AccountPoller(
            account="prod",
            provider="hcloud",
            cloud=self.cloud,
            nodes=self.nodes,
            stream_id=lambda: STREAM_ID,
            why_paused=lambda: (),
            publish=self._publish,
            on_listed=self._ignore,
            monotonic=self.clock,
            now=lambda: self.clock.now() - self.set_back,
            step_seconds=5.0,
            intervals=QueryIntervals(),
            requests_per_minute=REQUESTS_PER_MINUTE,
        )

    async def _publish(self, report: AnyInstanceEvent) -> None:
        assert isinstance(report, InstanceExists)
        self.answered_at.setdefault(report.name, self.clock())
        if len(self.answered_at) == len(self.nodes):
            self.is_answered.set()

    async def _ignore(self, query: Query, by_id: Mapping[str, Instance]) -> None:
        pass

    @asynccontextmanager
    async def poll(self) -> AsyncIterator[None]:
        """Run until the context ends."""
        polling = asyncio.ensure_future(self.poller.run())
        try:
            yield
        finally:
            polling.cancel()
            with suppress(asyncio.CancelledError):
                await polling

    def add_nodes(self, count: int, *, is_ready: bool) -> None:
        """Nodes join, each with an instance."""
        ready = NodeCondition(type="Ready", status="True" if is_ready else "False")
        first = len(self.nodes) + 1
        for number in range(first, first + count):
            name = f"web-{number}"
            self.cloud.instances[str(number)] = make_instance(str(number), name)
            node = make_node(name, uid=name, provider_id=f"hcloud://{number}", conditions=(ready,))
            self.nodes.upsert(node)
        if count:
            self.is_answered.clear()


@pytest.mark.parametrize(
    ("ready", "lost", "new", "lists", "seconds"),
    [
        pytest.param(10, 0, 1, 0, 10, id="one Node by its id"),
        pytest.param(10, 0, 30, 1, 10, id="a pool by a list"),
        pytest.param(100, 0, 30, 1, 10, id="a pool by a list of three pages"),
        pytest.param(1000, 0, 20, 0, 10, id="fewer than pages, by id"),
        pytest.param(1000, 0, 30, 0, 65, id="as many requests by id as in two minutes"),
        pytest.param(10, 0, 1000, 1, 65, id="as many pages as in two minutes"),
        pytest.param(10, 40, 1, 0, 10, id="one Node, while lost ones use up a round"),
        pytest.param(10, 40, 30, 1, 10, id="a pool, while lost ones use up a round"),
    ],
)
def test_new_nodes_wait_for_no_more_requests_than_they_need(
    ready: int, lost: int, new: int, lists: int, seconds: float
):
    async def measure() -> tuple[int, float]:
        account = Account()
        account.add_nodes(ready, is_ready=True)
        account.add_nodes(lost, is_ready=False)
        async with account.poll():
            await account.is_answered.wait()
            await asyncio.sleep(140.0)  # a round begins each minute: within one
            lists_before, joined_at = account.cloud.lists, account.clock()
            account.add_nodes(new, is_ready=False)
            await account.is_answered.wait()
        return account.cloud.lists - lists_before, max(account.answered_at.values()) - joined_at

    found_lists, waited = run_virtually(measure())
    assert found_lists == lists
    assert waited <= seconds


def test_a_few_new_instances_that_a_list_lacks_are_asked_for_by_their_ids():
    async def measure() -> float:
        account = Account()
        joined_at = account.clock()
        account.cloud.unlisted = {"7", "8"}
        account.add_nodes(30, is_ready=True)
        async with account.poll():
            await account.is_answered.wait()
        return max(account.answered_at.values()) - joined_at

    assert run_virtually(measure()) <= 15


def test_a_time_of_day_that_is_set_back_stops_no_report():
    async def observe() -> None:
        account = Account()
        account.add_nodes(1, is_ready=True)
        async with account.poll():
            await asyncio.sleep(60.0)
            account.set_back = timedelta(hours=1)
            account.answered_at.clear()
            account.is_answered.clear()
            await asyncio.wait_for(account.is_answered.wait(), 610.0)  # the next list

    run_virtually(observe())


def test_a_list_replaces_no_report_of_a_later_request():
    async def observe() -> None:
        account = Account()
        account.add_nodes(110, is_ready=False)
        await account.poller.step()
        await asyncio.sleep(60.0)
        # Two Nodes are asked for after the list began, and answer before its third page.
        await asyncio.gather(account.poller.list_all(), account.poller.step_round())
        times = [each.began for each in account.poller.schedule.by_name.values()]
        assert times.count(min(times)) == len(times) - MAX_PER_ROUND

    run_virtually(observe())


def test_the_anchor_is_unknown_until_the_present_credential_has_looked_for_it():
    async def observe() -> None:
        account = Account()
        cloud = account.cloud
        account.add_nodes(1, is_ready=True)
        forbidden = Unanswered("forbidden", "HTTP 403")

        def get_anchor() -> object:
            return account.poller.anchor

        assert get_anchor() == ANCHOR_NOT_SOUGHT
        cloud.anchor = forbidden
        async with account.poll():
            await asyncio.sleep(10.0)
            assert get_anchor() == forbidden
            cloud.anchor = Anchor("network", "1")
            await asyncio.sleep(65.0)
            assert get_anchor() == InstanceAnchor(kind="network", id="1")
            cloud.anchor, cloud.credential = None, msgspec.structs.replace(cloud.credential, generation=2)
            assert get_anchor() == ANCHOR_NOT_SOUGHT, "that of the former credential proves nothing"
            await asyncio.sleep(10.0)
            assert get_anchor() is None, "the project has none"

    run_virtually(observe())


def test_a_rate_limit_is_reported_only_while_something_is_asked_of_the_account():
    names = ("talosccm_cloud_rate_limit_remaining_requests", "talosccm_cloud_rate_limit_requests")

    def read_gauges() -> list[float | None]:
        return [metrics.REGISTRY.get_sample_value(name, {"account": "prod"}) for name in names]

    async def observe() -> None:
        account = Account()
        account.cloud.rate_limit = RateLimit(limit=3600, remaining=100)
        account.add_nodes(1, is_ready=True)
        async with account.poll():
            await account.is_answered.wait()
            await asyncio.sleep(10.0)
            assert read_gauges() == [100, 3600]
            assert account.poller.build_report().requests_left == 100
            for node in tuple(account.nodes):
                account.nodes.remove(node.name)
            await asyncio.sleep(10.0)
            assert read_gauges() == [None, None]
            assert account.poller.build_report().requests_left is None

    run_virtually(observe())
