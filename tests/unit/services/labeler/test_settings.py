"""The labeler's settings, the messages that it stores, and the decisions that it publishes."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from libs.common.bus.stream_limits import MAX_MESSAGE_AGE
from libs.common.contract.events import Event, NodeEnriched, NodeObserved
from libs.common.contract.node import Node, NodeAddress, NodeCondition
from libs.common.contract.subjects import subject_of
from libs.common.settings.cloud_config_reloader import parse_config_file
from libs.common.settings.read_settings import ParsedSettings, SettingsError, read_settings
from services.labeler.core.plan.plan import IN_SYNC_REASON, Plan, PlanOutcome
from services.labeler.core.rules.compilation import RulesError
from services.labeler.service import compact_message, make_decision_publisher
from services.labeler.settings import LabelerSettings
from tests.builders import (
    NOW,
    make_facts,
    make_message,
    make_node,
    make_node_enriched,
    make_node_gone,
    make_node_observed,
)

RULES = """\
transformations:
- name: first
  labels:
    zone: "{{ .Zone "
- name: second
  annotations:
    id: "{{ shout .InstanceID }}"
"""


def read(file: Path, text: str, *arguments: str) -> ParsedSettings:
    file.write_text(text)
    return read_settings([LabelerSettings], [f"--cloud-config={file}", *arguments], {})


@pytest.mark.parametrize("when", ["at the start", "when the file changes"])
def test_what_the_reader_finds_and_what_is_wrong_with_templates_is_told_at_once(tmp_path: Path, when: str):
    file = tmp_path / "ccm.yaml"
    text = "global: {clusterName: not a label}\n" + RULES + "- labls: {}\n"
    if when == "at the start":
        with pytest.raises(SettingsError) as caught:
            read(file, text, "--bananas")
        flag, *mistakes = str(caught.value).splitlines()
        assert flag.startswith("unknown flag --bananas")
    else:
        found = parse_config_file(text.encode(), file)
        settings = LabelerSettings(cloud_config=file)
        with pytest.raises(RulesError) as refused:
            settings.build_config(found)
        mistakes = list(settings.format_findings(refused.value.findings))
        assert mistakes == sorted(mistakes), "in the order of the lines"
    told = {mistake.partition("ccm.yaml, ")[2][:40] for mistake in mistakes}
    assert told == {
        'line 1: global.clusterName is "not a lab',
        'line 5: transformations[0].labels["zone"',
        'line 8: transformations[1].annotations["',
        'line 9: transformations[2] has no key "l',
    }


def test_a_template_that_can_only_fail_is_warned_of(tmp_path: Path):
    file = tmp_path / "ccm.yaml"
    (warning,) = read(file, 'transformations: [{labels: {a: "{{ .Zones }}"}}]\n').warnings
    assert warning.startswith(
        f'--cloud-config: {file}, line 1: transformations[0].labels["a"] reads .Zones, '
    )


def test_the_file_wins_over_the_flag_and_is_not_remembered_when_it_says_nothing_any_more(tmp_path: Path):
    reading = read(
        tmp_path / "ccm.yaml",
        "global: {clusterName: by-file, preferIPv6: true}\n",
        "--cluster-name=by-flag",
        "--cluster-name-fallbacks",
    )
    settings = reading.get(LabelerSettings)
    assert (settings.config.cluster_name, settings.config.prefer_ipv6) == ("by-file", True)
    silent = settings.build_config(read(tmp_path / "empty.yaml", "").get(LabelerSettings).file)
    assert (silent.cluster_name, silent.prefer_ipv6) == ("by-flag", False)


def test_the_flag_names_the_cluster_only_with_the_fallbacks_as_in_the_reference(tmp_path: Path):
    reading = read(tmp_path / "ccm.yaml", "", "--cluster-name=-no label-")
    settings = reading.get(LabelerSettings)
    assert settings.config.cluster_name == ""
    assert settings.problems() == ()
    (warning,) = settings.warnings()
    assert warning.startswith("--cluster-name has no effect without --cluster-name-fallbacks")
    asked = msgspec.structs.replace(settings, cluster_name="kubernetes", cluster_name_fallbacks=True)
    assert (asked.config.cluster_name, asked.warnings()) == ("kubernetes", ())
    (problem,) = msgspec.structs.replace(settings, cluster_name_fallbacks=True).problems()
    assert problem.startswith("--cluster-name: '-no label-' is not a valid label value")


# ---- stored messages


ADDRESSES = (NodeAddress(type="InternalIP", address="10.0.0.5"),)
READY = (NodeCondition(type="Ready", status="True"),)


def a_node(**fields: object) -> Node:
    """A Node that no other one shares a part with, as after decoding."""
    made = make_node(labels={"a": "b"}, annotations={"c": "d"}, addresses=ADDRESSES, conditions=READY)
    return msgspec.json.decode(msgspec.json.encode(msgspec.structs.replace(made, **fields)), type=Node)


def parts(node: Node) -> dict[str, object]:
    return {
        "labels": node.labels,
        "annotations": node.annotations,
        "spec": node.spec,
        "addresses": node.status.addresses,
        "conditions": node.status.conditions,
    }


CHANGED = a_node(metadata=msgspec.structs.replace(a_node().metadata, labels={"a": "changed"}))
OBSERVED = make_node_observed(CHANGED), make_node_observed(a_node())
REPORTED = make_node_enriched(CHANGED, make_facts()), make_node_enriched(a_node(), make_facts())


@pytest.mark.parametrize(("arrived", "stored"), [(OBSERVED[0], REPORTED[1]), (REPORTED[0], OBSERVED[1])])
def test_observation_and_report_share_equal_parts_and_each_keeps_its_own_values(
    arrived: NodeObserved | NodeEnriched, stored: NodeObserved | NodeEnriched
):
    message = compact_message(make_message(arrived, sequence=7), {subject_of(stored): stored}.get)
    assert message == make_message(arrived, sequence=7)
    assert isinstance(message.event, NodeObserved | NodeEnriched)
    compacted, before = parts(message.event.node), parts(stored.node)
    assert {name for name in before if compacted[name] is before[name]} == before.keys() - {"labels"}
    assert arrived.node.spec is not stored.node.spec


@pytest.mark.parametrize(("arrived", "stored"), [OBSERVED, REPORTED])
def test_the_message_that_the_new_one_replaces_lends_nothing(
    arrived: NodeObserved | NodeEnriched, stored: NodeObserved | NodeEnriched
):
    message = make_message(arrived)
    assert compact_message(message, {subject_of(stored): stored}.get) is message


def test_a_deletion_and_a_node_that_is_stored_nowhere_else_are_stored_as_they_are():
    for event in (make_node_gone(a_node()), make_node_observed(a_node())):
        message = make_message(event)
        assert compact_message(message, lambda subject: None) is message


# ---- decisions


WEB = make_node()
INITIALIZED = Plan(outcome="initialized", reason="r")
IN_SYNC = Plan(outcome="unchanged", reason=IN_SYNC_REASON)


class Decisions:
    """A publisher on a bus that keeps what is published, and its clock."""

    def __init__(self) -> None:
        self.published: list[Event] = []
        self.now = NOW
        self.publisher = make_decision_publisher(self, now=lambda: self.now, observe_only=False)  # type: ignore[arg-type]  # only publishes

    async def publish(self, event: Event, **_: Any) -> int:
        self.published.append(event)
        return 1

    async def is_published(self, plan: Plan, *, uid: str = WEB.uid, **times: Any) -> bool:
        before = len(self.published)
        await self.publisher.publish(make_node(uid=uid), plan.outcome, plan.reason_and_notices, **times)
        return len(self.published) > before


def make_plan(outcome: PlanOutcome = "initialized", reason: str = "r") -> Plan:
    return Plan(outcome=outcome, reason=reason)


SILENT = make_plan("unchanged", "left as it is: connection refused")
BLOCKED = make_plan("blocked", "no")


@pytest.mark.parametrize(
    "decided",
    [
        [(INITIALIZED, {}), (INITIALIZED, None), (make_plan(reason="another"), {}), (INITIALIZED, {})],
        [(INITIALIZED, {}), (INITIALIZED, {"uid": "uid-2"})],
        [(INITIALIZED, {}), (IN_SYNC, None), (BLOCKED, {}), (IN_SYNC, {})],
        [(INITIALIZED, {}), (SILENT, {}), (SILENT, None), (IN_SYNC, {})],
        [(BLOCKED, {"next_check_at": NOW}), (BLOCKED, {"next_check_at": NOW + timedelta(seconds=1)})],
    ],
    ids=["once", "another node", "own write", "unreachable and back", "next check"],
)
async def test_a_decision_is_published_when_it_changes(decided: list[tuple[Plan, dict[str, Any] | None]]):
    """None: not published."""
    decisions = Decisions()
    for plan, more in decided:
        assert await decisions.is_published(plan, **(more or {})) is (more is not None)


async def test_an_unchanged_decision_is_published_again_before_the_stream_drops_it():
    decisions = Decisions()
    assert await decisions.is_published(INITIALIZED)
    decisions.now += MAX_MESSAGE_AGE / 2
    assert await decisions.is_published(IN_SYNC)
    decisions.now += MAX_MESSAGE_AGE / 2
    assert await decisions.is_published(IN_SYNC)


async def test_a_new_stream_gets_the_decision_again():
    decisions = Decisions()
    assert await decisions.is_published(INITIALIZED)
    decisions.publisher.forget_all()
    assert await decisions.is_published(INITIALIZED)
