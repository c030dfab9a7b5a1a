"""What proves that a machine was replaced, and how it is queried."""

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.contract.machine import ForeignMachine, MachineFacts, MachineFault
from libs.common.contract.node import NodeAddress
from services.metadata.core.machine_replacement import (
    Inconclusive,
    judge_replacement,
    list_expected_addresses,
    list_remaining_addresses,
)
from services.metadata.machines.replacement_detector import (
    MEMBERS_TTL_SECONDS,
    SIGHTING_TTL_SECONDS,
    MachineSightings,
    MemberCache,
    ReplacementDetector,
)
from services.metadata.settings import MetadataSettings
from tests.builders import NOW, make_facts, make_node
from tests.metadata_actors import ScriptedTalos

UUID = "4c4c4544-0037-4b10-8057-b2c04f4d4e31"
SILENT = MachineFault(kind="timeout", step="PlatformMetadata", message="no answer in time")
DUAL = make_node(ip="10.0.0.5,fd00::5")


def internal(*addresses: str) -> tuple[NodeAddress, ...]:
    return tuple(NodeAddress(type="InternalIP", address=address) for address in addresses)


def another(ip: str = "10.0.0.5", name: str = "web-9", uuid: str = UUID) -> MachineFacts:
    return make_facts(node_name=name, node_ip=ip, uuid=uuid)


def judged(node=None, answers=None, *, members=frozenset({"web-9"}), reached=frozenset({"web-9"})):
    said = {"10.0.0.5": another()} if answers is None else answers
    return judge_replacement(node or make_node(), said, members=members, reachable_nodes=reached)


def reason(found) -> str:
    assert isinstance(found, Inconclusive), found
    return found.reason


def test_a_machine_with_another_name_is_a_replacement():
    assert judged() == (ForeignMachine(address="10.0.0.5", node_name="web-9", uuid=UUID, queried_at=NOW),)


def test_a_machine_without_smbios_is_reported_without_a_uuid():
    (found,) = judged(answers={"10.0.0.5": another(uuid="")})
    assert not found.uuid


def test_each_address_needs_an_answer_of_its_own():
    answers = {"10.0.0.5": another(), "fd00::5": another("fd00::5")}
    assert [one.address for one in judged(DUAL, answers)] == ["10.0.0.5", "fd00::5"]
    assert reason(judged(DUAL, {"10.0.0.5": another()})) == "at fd00::5: not queried"
    assert reason(judged(DUAL, answers | {"fd00::5": SILENT})) == "at fd00::5: no answer in time"


@pytest.mark.parametrize(
    ("name", "why"),
    [("web-1", "has the Node's name"), ("", "has no node name yet")],
)
def test_a_machine_that_may_be_the_node_s_own_proves_nothing(name, why):
    assert why in reason(judged(answers={"10.0.0.5": another(name=name)}))
    both = {"10.0.0.5": another(), "fd00::5": another("fd00::5", name)}
    assert why in reason(judged(DUAL, both))


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ({"web-1", "web-9"}, "discovery still lists a member web-1"),
        (set(), "discovery does not list web-9"),
        ({"web-2", "web-3"}, "discovery does not list web-9"),
    ],
    ids=["still a member", "an empty table", "a table without the one that answers"],
)
def test_discovery_must_list_the_replacement_and_not_the_replaced_machine(members, why):
    assert why in reason(judged(members=frozenset(members)))


def test_a_discovery_that_lists_at_most_half_of_the_reachable_machines_proves_nothing():
    reached = frozenset({"web-2", "web-3", "web-4", "web-9"})
    assert "only 2 of 4" in reason(judged(members=frozenset({"web-9", "web-2"}), reached=reached))
    assert judged(members=frozenset({"web-9", "web-2", "web-3"}), reached=reached)


@pytest.mark.parametrize("reached", [frozenset(), frozenset({"web-2"})])
def test_a_machine_that_does_not_answer_at_its_own_node_proves_nothing(reached):
    found = judged(members=frozenset({"web-2", "web-9"}), reached=reached)
    assert reason(found) == "the machine at 10.0.0.5 does not answer at its own Node web-9"


def test_every_internal_ip_is_queried_and_no_external_one():
    written = (
        *internal("10.0.0.5", "10.1.0.5"),
        NodeAddress(type="ExternalIP", address="203.0.113.7"),
        NodeAddress(type="Hostname", address="web-1"),
    )
    node = make_node(addresses=written)
    assert list_expected_addresses(node) == ("10.0.0.5", "10.1.0.5")
    assert list_remaining_addresses(node, [another()]) == ("10.1.0.5",)
    assert list_remaining_addresses(make_node(), [another()]) == ()


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (make_node(ip=""), "no node IP that metadata dials"),
        (make_node(ip="localhost"), "no node IP that metadata dials"),
        (make_node(addresses=internal("127.0.0.1")), "does not dial its InternalIP '127.0.0.1'"),
        (make_node(addresses=internal("metadata.internal")), "metadata does not dial its InternalIP"),
        (make_node(addresses=internal(*(f"10.1.0.{i}" for i in range(1, 20)))), "more than 8 addresses"),
    ],
)
def test_a_node_with_addresses_that_are_not_dialled_is_never_replaced(node, why):
    assert why in reason(list_expected_addresses(node))
    assert isinstance(list_remaining_addresses(node, [another()]), Inconclusive)
    assert isinstance(judged(node), Inconclusive)


def test_no_other_address_is_dialled_while_a_node_ip_is_silent_or_the_nodes_own():
    assert reason(list_remaining_addresses(DUAL, [another()])) == "no machine answers at some of its node IPs"
    assert "has the Node's name" in reason(list_remaining_addresses(make_node(), [another(name="web-1")]))


NAMES = st.sampled_from(["web-1", "web-2", "web-9", ""])
IPS = ("10.0.0.5", "fd00::5", "10.1.0.5")
ANSWERS = st.dictionaries(st.sampled_from(IPS), st.builds(another, st.just(""), NAMES) | st.just(SILENT))
MEMBERS = st.frozensets(st.sampled_from(["web-1", "web-2", "web-3", "web-9"]))


@given(ANSWERS, MEMBERS, MEMBERS, st.sampled_from(["10.0.0.5", "10.0.0.5,fd00::5"]), st.booleans())
def test_a_replacement_answers_at_every_address_and_discovery_lists_it(
    answers, members, reached, provided, has_another
):
    node = make_node(ip=provided, addresses=internal("10.1.0.5") if has_another else ())
    said = {
        ip: msgspec.structs.replace(one, node_ip=ip) if isinstance(one, MachineFacts) else one
        for ip, one in answers.items()
    }
    found = judge_replacement(node, said, members=members, reachable_nodes=reached)
    if isinstance(found, Inconclusive):
        assert found.reason
        return
    assert {one.address for one in found} == {*provided.split(","), *(["10.1.0.5"] if has_another else [])}
    for one in found:
        facts = said[one.address]
        assert isinstance(facts, MachineFacts)
        assert one.node_name == facts.node_name not in {"", "web-1"}
        assert one.node_name in members & reached
    assert "web-1" not in members


# ---- queries


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
