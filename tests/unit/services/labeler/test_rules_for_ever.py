"""After any change of rules and Node, one plan is enough, and keys of other writers stay unchanged."""

import random
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.common.cloud_config.model import CloudConfig, Rule, RuleEntry
from libs.common.contract.machine import MachineFacts
from libs.common.contract.node import (
    FIELD_OWNERSHIP_ANNOTATION,
    FIELD_OWNERSHIP_DIGEST_LABEL,
    PROVIDED_NODE_IP_ANNOTATION,
    Node,
    Taint,
)
from services.labeler.core.plan.keys import BUILT_IN, REGION, ZONE
from services.labeler.core.plan.ownership_record import ManagedFields, encode_managed_fields
from services.labeler.core.plan.plan import ClusterConfig
from services.labeler.core.rules.compilation import compile_rules
from tests.builders import UNINITIALIZED, make_facts, make_node
from tests.node_plans import (
    apply_plan,
    change_metadata,
    decode_record_annotation,
    plan_for,
    set_ownership_record,
)

NONE = ClusterConfig()
KEYS = ("example.com/a", "example.com/b", "node-role.kubernetes.io/web", ZONE[0], REGION[0])
VALUES = ("", "one", "two", "{{ .Platform }}", "{{ .Zone }}", "{{ .Nothing }}", "{{ .Platform }} no label")
TAINTS = ("NoSchedule", "one:NoSchedule", "two:NoExecute", "{{ .Zone }}:NoExecute", "{{ .Zone }}")
OF_PEOPLE = ("mine", "one", "two", "metal", "")
FACTS = (
    make_facts(),
    make_facts(zone="rack-1", region="one"),
    make_facts(zone="rack 1"),
    make_facts(zone="rack-2", instance_type="big", spot=True),
)


def entries(chance: random.Random, keys: Iterable[str], values: tuple[str, ...]) -> tuple[RuleEntry, ...]:
    return tuple(RuleEntry(key, chance.choice(values), 1) for key in keys if chance.random() < 0.4)


def some_rules(chance: random.Random) -> ClusterConfig:
    rules = tuple(
        Rule(
            index=index,
            labels=entries(chance, KEYS, VALUES),
            annotations=entries(chance, KEYS[:2], VALUES),
            taints=entries(chance, KEYS[:2], TAINTS),
            platform_metadata=entries(
                chance, ("zone", "region", "spot"), ("", "one", "{{ .Nothing }}", "true")
            ),
        )
        for index in range(chance.randrange(3))
    )
    return ClusterConfig(rules=compile_rules(CloudConfig(rules=rules)))


class Walk:
    """A Node, its rules and its machine, changed by people and operators, and the keys of people."""

    def __init__(self, chance: random.Random, node: Node) -> None:
        self.chance = chance
        self.node = node
        self.rules = some_rules(chance)
        self.facts: MachineFacts = FACTS[0]
        # As it registered: zone and region of a joining Node are for the cloud controller to say.
        self.labels = {key: value for key, value in node.labels.items() if key not in BUILT_IN}
        self.annotations = dict(node.annotations)
        self.taints = {
            (taint.key, taint.effect): taint.value for taint in node.spec.taints if taint != UNINITIALIZED
        }

    def obey(self) -> None:
        """Plan and write; then no change is left, and the keys of people are unchanged."""
        plan = plan_for(self.node, self.facts, self.rules)
        self.node = apply_plan(self.node, plan)
        again = plan_for(self.node, self.facts, self.rules)
        assert (again.summary, again.outcome) == ((), "unchanged")
        assert self.node.labels.items() >= self.labels.items()
        assert self.node.annotations.items() >= self.annotations.items()
        present = {(taint.key, taint.effect): taint.value for taint in self.node.spec.taints}
        assert present.items() >= self.taints.items()
        record = decode_record_annotation(self.node)
        assert list_absent_values(record, "annotations", self.node.annotations) == {}
        assert list_absent_values(record, "taints", {":".join(key): present[key] for key in present}) == {}
        for section in ("machine", "labels"):
            assert list_absent_values(record, section, self.node.labels) == {}

    def step(self) -> None:
        """Make one change, then reconcile."""
        if self.chance.random() < 0.6:
            self.rules = some_rules(self.chance)
        if self.chance.random() < 0.3:
            self.facts = self.chance.choice(FACTS)
        if self.chance.random() < 0.4:
            self.chance.choice((self.label, self.annotate, self.taint))()
        self.obey()

    def label(self) -> None:
        key, value = self.chance.choice((*KEYS, "mine")), self._value()
        if self.node.labels.get(key) != value:
            self.node = change_metadata(self.node, labels={key: value})
            _hold(self.labels, key, value)

    def annotate(self) -> None:
        key, value = self.chance.choice((*KEYS, "mine")), self._value()
        if self.node.annotations.get(key) != value:
            self.node = change_metadata(self.node, annotations={key: value})
            _hold(self.annotations, key, value)

    def taint(self) -> None:
        key, effect = self.chance.choice(KEYS[:2]), self.chance.choice(("NoSchedule", "NoExecute"))
        value = self._value()
        present = {(taint.key, taint.effect): taint for taint in self.node.spec.taints}
        old = present.pop((key, effect), None)
        if (old.value if old else None) != value:
            new = () if value is None else (Taint(key=key, value=value, effect=effect),)
            self.node = change_metadata(self.node, taints=(*present.values(), *new))
            _hold(self.taints, (key, effect), value)

    def _value(self) -> str | None:
        return None if self.chance.random() < 0.3 else self.chance.choice(OF_PEOPLE)


def list_absent_values(record: dict[str, Any], section: str, present: Mapping[str, str]) -> dict[str, str]:
    """The values in that section of the record that the Node does not have; null names no value."""
    recorded = record.get(section, {})
    return {key: value for key, value in recorded.items() if value is not None and present.get(key) != value}


def _hold(theirs: dict, key: object, value: str | None) -> None:
    if value is None:
        theirs.pop(key, None)
    else:
        theirs[key] = value


def a_joining_node(chance: random.Random) -> Node:
    labels = {key: chance.choice(OF_PEOPLE) for key in (*KEYS, "mine") if chance.random() < 0.4}
    annotations = {key: chance.choice(OF_PEOPLE) for key in KEYS if chance.random() < 0.3}
    theirs = (Taint(key=KEYS[0], value="one", effect="NoSchedule"),) if chance.random() < 0.3 else ()
    return make_node(labels=labels, annotations=annotations, taints=(*theirs, UNINITIALIZED))


def leaves_nothing_behind(walk: Walk) -> None:
    """Without rules, all keys of rules are removed; built-in labels and keys of people stay."""
    walk.rules, walk.facts = NONE, FACTS[0]
    walk.obey()
    ours = BUILT_IN | {FIELD_OWNERSHIP_DIGEST_LABEL}
    assert {key: value for key, value in walk.node.labels.items() if key not in ours} == {
        key: value for key, value in walk.labels.items() if key not in BUILT_IN
    }
    assert walk.node.annotations.keys() - {FIELD_OWNERSHIP_ANNOTATION} == walk.annotations.keys()
    assert {(taint.key, taint.effect): taint.value for taint in walk.node.spec.taints} == walk.taints


@pytest.mark.parametrize("seed", range(6))
def test_what_people_hold_is_byte_identical_after_a_hundred_edits_of_the_rules(seed: int):
    chance = random.Random(seed)
    walk = Walk(chance, a_joining_node(chance))
    walk.obey()
    for _ in range(170):  # six of ten edit the rules
        walk.step()
    leaves_nothing_behind(walk)


MARKS = st.dictionaries(st.sampled_from(KEYS), st.sampled_from((None, *OF_PEOPLE)), max_size=4)
TAINT_MARKS = st.dictionaries(
    st.sampled_from([f"{key}:{effect}" for key in KEYS[:2] for effect in ("NoSchedule", "NoExecute")]),
    st.sampled_from((None, *OF_PEOPLE)),
    max_size=3,
)
RECORDS = st.builds(
    ManagedFields, machine=MARKS, labels=MARKS, annotations=MARKS, taints=TAINT_MARKS
).map(encode_managed_fields) | st.sampled_from(["", "{", '{"v":1}', '{"v":2}'])  # fmt: skip


@settings(max_examples=80)
@given(st.randoms(use_true_random=False), RECORDS, st.booleans())
def test_from_any_record_it_settles_at_once(chance: random.Random, record: str, joining: bool):
    node = set_ownership_record(a_joining_node(chance), record)
    if not joining:
        node = change_metadata(
            node, taints=tuple(taint for taint in node.spec.taints if taint != UNINITIALIZED)
        )
    for _ in range(3):
        rules, facts = some_rules(chance), chance.choice(FACTS)
        node = apply_plan(node, plan_for(node, facts, rules))
        assert plan_for(node, facts, rules).summary == ()
    assert node.annotations[PROVIDED_NODE_IP_ANNOTATION] == "10.0.0.5"


@given(st.randoms(use_true_random=False))
def test_without_any_record_values_that_differ_stay(chance: random.Random):
    node = a_joining_node(chance)
    node = change_metadata(node, taints=())
    rules = some_rules(chance)
    after = apply_plan(node, plan_for(node, FACTS[0], rules))
    assert after.labels.items() >= node.labels.items()  # that machine says nothing of zone and region
    assert after.spec.taints == ()


def test_the_record_of_a_node_is_small():
    node = apply_plan(make_node(), plan_for(make_node(), FACTS[3], NONE))
    assert len(msgspec.json.encode(node.annotations[FIELD_OWNERSHIP_ANNOTATION])) < 600
