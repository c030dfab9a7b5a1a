"""The queries that detect a replacement, and the cache of discovery members."""

import asyncio

import pytest

from libs.common.contract.machine import MachineFault
from services.metadata.machines.replacement_detector import (
    MEMBERS_TTL_SECONDS,
    SIGHTING_TTL_SECONDS,
    MachineSightings,
    MemberCache,
    ReplacementDetector,
)
from services.metadata.settings import MetadataSettings
from tests.builders import make_facts, make_node
from tests.metadata_actors import ScriptedTalos

WEB_9 = make_facts(node_name="web-9")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def members_of(talos: ScriptedTalos, clock: Clock) -> MemberCache:
    return MemberCache(talos, deadline_seconds=1.0, monotonic=clock)


async def test_concurrent_callers_share_one_query_and_a_later_one_queries_again():
    talos, clock = ScriptedTalos(), Clock()
    members = members_of(talos, clock)
    talos.members = frozenset({"web-9"})
    assert await asyncio.gather(*(members.get_names() for _ in range(20))) == [frozenset({"web-9"})] * 20
    clock.now += MEMBERS_TTL_SECONDS - 0.1
    talos.members = frozenset({"web-1", "web-9"})
    assert await members.get_names() == frozenset({"web-9"})
    assert talos.questions_for_members == 1
    clock.now += 0.2
    assert await members.get_names() == frozenset({"web-1", "web-9"})
    await members.close()


async def test_a_cancelled_caller_does_not_cancel_the_query_of_the_others():
    talos, clock = ScriptedTalos(), Clock()
    talos.members = frozenset({"web-9"})
    members = members_of(talos, clock)
    impatient = asyncio.create_task(members.get_names())
    patient = asyncio.create_task(members.get_names())
    await asyncio.sleep(0)
    impatient.cancel()
    assert await patient == frozenset({"web-9"})
    assert talos.questions_for_members == 1
    await members.close()


async def test_an_unexpected_error_of_the_members_query_is_a_fault():
    class Defective(ScriptedTalos):
        async def list_member_names(self, *, deadline_seconds: float) -> frozenset[str]:
            raise ZeroDivisionError("a defect")

    members = members_of(Defective(), Clock())
    found = await members.get_names()
    assert isinstance(found, MachineFault)
    assert found.kind == "internal"
    await members.close()


def test_a_sighting_proves_for_half_an_hour_that_a_machine_runs():
    clock = Clock()
    met = MachineSightings(clock)
    met.record(make_facts(node_name="web-1", node_ip="10.0.0.6"))
    met.record(make_facts(node_name="", node_ip="10.0.0.7"))
    assert met.explain_alive("web-1") == (
        "a machine with its name answered at 10.0.0.6 within the last half hour"
    )
    assert (met.explain_alive("web-2"), met.explain_alive("")) == ("", "")
    clock.now += SIGHTING_TTL_SECONDS - 1
    assert met.explain_alive("web-1")
    met.record(make_facts(node_name="web-1", node_ip="10.0.0.8"))
    clock.now += 2
    assert "10.0.0.8" in met.explain_alive("web-1")
    clock.now += SIGHTING_TTL_SECONDS
    assert not met.explain_alive("web-1")


def test_sightings_older_than_half_an_hour_are_dropped():
    clock = Clock()
    met = MachineSightings(clock)
    for number in range(10_000):  # one machine that calls itself something else each time
        met.record(make_facts(node_name=f"web-{number}"))
        clock.now += 60.0
    assert len(met._sightings) <= SIGHTING_TTL_SECONDS / 60.0


@pytest.mark.parametrize(("wanted", "answered"), [(True, ["web-9"]), (False, [])])
async def test_a_disabled_detector_queries_nothing(wanted: bool, answered: list[str]):
    talos = ScriptedTalos()
    talos.members = frozenset({"web-9"})
    reached = frozenset({"web-9"})
    others = ReplacementDetector(
        talos, get_reachable_nodes=lambda: reached, is_enabled=wanted, deadline_seconds=1.0, monotonic=Clock()
    )
    found = await others.detect(make_node(), (WEB_9,))
    assert [one.node_name for one in found] == answered
    assert talos.questions_for_members == len(answered)
    await others.close()


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        (MetadataSettings(), False),
        (MetadataSettings(controllers=("*", "cloud-node-lifecycle")), True),
        (MetadataSettings(controllers=("cloud-node-lifecycle-controller",)), True),
        (MetadataSettings(controllers=("cloud-node-lifecycle",), without_talos=True), False),
    ],
    ids=["off by default", "by its alias", "by its name", "without Talos"],
)
def test_metadata_serves_lifecycle_only_where_it_is_selected(settings: MetadataSettings, wanted: bool):
    assert settings.serves_lifecycle is wanted
