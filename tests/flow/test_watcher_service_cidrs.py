"""The ranges of ServiceCIDRs in the snapshots of the watcher, with a scripted API server."""

import time

import pytest

from libs.common.kube.errors import Forbidden, KubeError, NotFound, Unreachable
from libs.common.kube.objects import ServiceCidr, UnreadableObject
from libs.common.kube.watch_events import Changed, Deleted, ListSnapshot
from services.watcher.informer import ServiceCidrInformer
from services.watcher.resync_requests import ResyncRequests
from tests.bus_actors import wait_until
from tests.watcher_actors import (
    ScriptedKind,
    follow_watcher,
    make_service_cidr,
)

DEFAULT = make_service_cidr("kubernetes", "10.96.0.0/12")
ADDED = make_service_cidr("added", "10.200.0.0/16", "fd00:200::/112")


def informed() -> ServiceCidrInformer:
    script = ScriptedKind[ServiceCidr]()
    script.refusal = Forbidden("servicecidrs is forbidden", status=403)
    return ServiceCidrInformer(script.source, ResyncRequests(time.monotonic))


async def test_each_change_of_the_ranges_is_in_another_snapshot():
    script = ScriptedKind(DEFAULT)
    async with follow_watcher(service_cidrs=script.source) as (_, flow):
        script.put(ADDED)
        await flow.wait_for(lambda f: len(f.snapshots()) == 2, "another one")
        script.put(ADDED)  # its status changed
        script.delete("added")
        await flow.wait_for(lambda f: len(f.snapshots()) == 3, "the last one")
    assert [said.service_cidrs for said in flow.snapshots()] == [
        ("10.96.0.0/12",),
        ("10.200.0.0/16", "10.96.0.0/12", "fd00:200::/112"),
        ("10.96.0.0/12",),
    ]


async def test_ranges_that_the_watcher_may_not_list_are_unknown_until_it_may():
    script = ScriptedKind(DEFAULT)
    script.refusal = Forbidden("servicecidrs is forbidden", status=403)
    async with follow_watcher(service_cidrs=script.source) as (watcher, flow):
        assert flow.snapshots()[0].service_cidrs is None
        assert any("servicecidrs is forbidden" in problem for problem in watcher.problems())
        script.grant()
        await flow.wait_for(lambda f: f.snapshots()[-1].service_cidrs == ("10.96.0.0/12",), "the ranges")
        await wait_until(lambda: watcher.problems() == (), "ready")


@pytest.mark.parametrize(
    ("error", "ranges"),
    [
        (NotFound("404 page not found", status=404), ()),
        (Forbidden("no", status=403), None),
        (Unreachable("no"), None),
    ],
)
async def test_only_an_api_server_without_the_kind_has_no_ranges(
    error: KubeError, ranges: tuple[str, ...] | None
):
    informer = informed()
    assert informer.is_sync_pending
    informer._on_error(error)
    assert (informer.cidrs, informer.is_sync_pending) == (ranges, False)
    assert bool(informer.problems()) == (ranges is None)
    assert ("resources [servicecidrs]" in str(informer.problems())) == isinstance(error, Forbidden)


@pytest.mark.parametrize(
    "error", [NotFound("no", status=404), Forbidden("no", status=403), Unreachable("no")]
)
async def test_no_failure_ends_a_range_that_is_known(error: KubeError):
    """An older API server of a cluster that is being upgraded answers 404."""
    informer = informed()
    await informer._on_watch_event(ListSnapshot((DEFAULT,), "1", ()))
    informer._on_error(error)
    assert informer.cidrs == ("10.96.0.0/12",)


async def test_ranges_are_unknown_while_an_object_cannot_be_decoded():
    informer = informed()
    found: list[tuple[str, ...] | None] = []
    await informer._on_watch_event(ListSnapshot((DEFAULT,), "1", ()))
    informer._on_unreadable(UnreadableObject(resource="servicecidrs", name="added", reason="odd"))
    assert "added" in str(informer.problems())
    found.append(informer.cidrs)
    for event in (Changed(ADDED), Deleted(ADDED)):
        await informer._on_watch_event(event)
        found.append(informer.cidrs)
    assert found == [None, ("10.200.0.0/16", "10.96.0.0/12", "fd00:200::/112"), ("10.96.0.0/12",)]
