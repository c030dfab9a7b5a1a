"""The watch of Nodes, with a script of what the API server tells."""

from datetime import UTC, datetime, timedelta

from libs.common.observability import metrics
from services.watcher.core.kinds import NODE
from services.watcher.core.store import Store
from tests.bus_actors import run_during, wait_until
from tests.watcher_actors import ScriptedNodes, make_informer


def last_heard() -> float:
    value = metrics.REGISTRY.get_sample_value(
        "talosccm_watch_last_heard_timestamp_seconds", {"resource": "nodes"}
    )
    assert value is not None
    return value


async def test_in_a_quiet_cluster_it_can_be_seen_that_the_api_server_is_still_heard():
    script, store, now = ScriptedNodes(), Store(NODE), datetime(2026, 1, 1, tzinfo=UTC)
    watch = make_informer(NODE, script.source, store, now=lambda: now)
    script.freshness = None
    async with run_during(watch.run(lambda names: None)):
        await wait_until(lambda: store.has_synced)
        assert last_heard() == 0.0
        script.freshness = 0.0
        assert last_heard() == now.timestamp()
        now += timedelta(hours=2)  # nothing happens, but each watch is followed by another one
        script.freshness = 20.0
        assert last_heard() == now.timestamp() - 20.0
