"""One writer per field, and every service publishes only what its service spec declares."""

import ast
import re
from collections import Counter
from itertools import combinations
from typing import cast

import pytest

from libs.common.cloud_config.kubernetes_names import why_reserved
from libs.common.cloud_config.model import Kind
from libs.common.contract import events
from libs.common.contract.services import (
    CLAIM_PAGES_NAMESPACE,
    CLOUD,
    DURABLES,
    LEASE_NAMESPACE,
    SERVICE_TABLE,
    ServiceSpec,
)
from libs.common.contract.subjects import ROOT, STREAM, subject_of
from libs.common.kube.events import event_namespace, node_reference
from tests.architecture.sources import sources
from tests.contract.test_golden_events import GOLDEN

CLUSTER_SCOPED = {
    "nodes",
    "nodes/status",
    "certificatesigningrequests",
    "certificatesigningrequests/approval",
    "servicecidrs",
    "subjectaccessreviews",
    "tokenreviews",
    "services",
    "services/status",
    "namespaces",
    "signers",
}
# The event classes, each with a subject. A service that constructs one publishes there.
SUBJECT_OF_CLASS = {type(event).__name__: subject_of(event) for event in map(events.decode, GOLDEN.values())}


def matches(filter_subject: str, subject: str) -> bool:
    """NATS subject matching for literals and a trailing `>`."""
    if filter_subject.endswith(".>"):
        return subject.startswith(filter_subject[:-1]) and len(subject) > len(filter_subject) - 1
    return filter_subject == subject


def constructed_events(service: str) -> set[str]:
    """Names of event classes that a service's code calls."""
    return {
        node.func.id
        for source in sources(f"services/{service}")
        for node in source.nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in SUBJECT_OF_CLASS
    }


def test_no_field_has_two_writers():
    owned = Counter(field for wiring in SERVICE_TABLE for field in wiring.owns)
    assert [field for field, writers in owned.items() if writers > 1] == []
    for one, other in combinations(SERVICE_TABLE, 2):
        for field in one.owns:
            assert not any(field.startswith(f"{foreign}.") for foreign in other.owns), (field, other.service)


def test_no_rule_may_set_a_key_of_a_node_that_a_service_owns():
    pattern = r"node/(?:metadata|spec)\.(labels|annotations|taints)\[(.+)\]"
    named = [
        found.groups()
        for wiring in SERVICE_TABLE
        for field in wiring.owns
        if (found := re.fullmatch(pattern, field))
    ]
    assert len(named) >= 3
    assert [key for kind, key in named if not why_reserved(cast("Kind", kind), key)] == []


@pytest.mark.parametrize("wiring", SERVICE_TABLE, ids=lambda wiring: wiring.service)
def test_a_service_publishes_only_declared_events(wiring: ServiceSpec):
    for name in constructed_events(wiring.service):
        subject = SUBJECT_OF_CLASS[name]
        assert any(matches(declared, subject) for declared in wiring.publishes), f"{name} is not declared"


def test_every_declared_flow_subject_has_a_publisher_in_the_code():
    for wiring in SERVICE_TABLE:
        built = {SUBJECT_OF_CLASS[name] for name in constructed_events(wiring.service)}
        for declared in wiring.publishes:
            if ".flow." in declared:
                assert any(matches(declared, subject) for subject in built), (wiring.service, declared)


def test_no_two_services_publish_to_one_subject():
    for one, other in combinations(SERVICE_TABLE, 2):
        for subject in one.publishes:
            assert not any(matches(foreign, subject.replace(">", "x")) for foreign in other.publishes)


def test_durables_are_distinct_and_have_valid_names():
    names = [durable.name for durable in DURABLES]
    assert len(set(names)) == len(names)
    assert all(name.replace("-", "").isalnum() for name in names)
    assert STREAM.isalnum()


def test_a_durable_belongs_to_a_service_that_may_publish_its_dead_letters():
    for wiring in SERVICE_TABLE:
        for durable in wiring.durables:
            assert durable.service == wiring.service
            assert f"{ROOT}.dead.{wiring.service}.>" in wiring.publishes


def test_exactly_the_services_that_write_events_may_write_them():
    writers = {
        wiring.service
        for wiring in SERVICE_TABLE
        for source in sources(f"services/{wiring.service}")
        for node in source.nodes
        if (isinstance(node, ast.Attribute) and node.attr == "create_event")
        or (isinstance(node, ast.Name) and node.id == "EventRecorder")
    }
    allowed = {
        wiring.service for wiring in SERVICE_TABLE if any(r.resource == "events" for r in wiring.policy_rules)
    }
    assert allowed == writers


def test_only_lifecycle_deletes_nodes_and_at_one_place_in_its_code():
    deleting = {
        wiring.service for wiring in SERVICE_TABLE if any("delete" in r.verbs for r in wiring.policy_rules)
    }
    assert deleting == {"lifecycle"}
    places = [
        source.module
        for source in sources("services", "cli")
        for node in source.nodes
        if isinstance(node, ast.Attribute)
        and node.attr == "delete_node"
        and ast.unparse(node) != "self.nodes.delete_node"  # an index in memory
    ]
    assert places == ["services.lifecycle.node_deleter"]


def test_permissions_for_namespaced_resources_are_limited_to_one_namespace():
    namespaces = {
        right.resource: right.namespace
        for wiring in SERVICE_TABLE
        for right in wiring.policy_rules
        if right.resource not in CLUSTER_SCOPED
        # Events about Services are in the namespaces of the Services.
        and (wiring, right.resource) != (CLOUD, "events")
    }
    about = node_reference("web-1", "uid-1")
    assert namespaces == {
        "leases": LEASE_NAMESPACE,
        "configmaps": CLAIM_PAGES_NAMESPACE,
        "events": event_namespace(about),
    }


def test_only_the_watcher_provisions_the_stream():
    assert [wiring.service for wiring in SERVICE_TABLE if wiring.provisions_stream] == ["watcher"]


def test_the_service_that_queries_machines_has_no_kubernetes_permission():
    metadata = next(wiring for wiring in SERVICE_TABLE if wiring.service == "metadata")
    assert metadata.policy_rules == ()
    assert [wiring.service for wiring in SERVICE_TABLE if "talosconfig" in wiring.secrets] == ["metadata"]
