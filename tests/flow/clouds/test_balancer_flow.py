"""Load balancers of Services from end to end: API server, watcher, the account's process, and its cloud."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from libs.clouds.hcloud.balancers.hcloud_balancers import HcloudBalancers
from libs.common.bus.memory.bus import MemoryBus, MemoryServer
from libs.common.contract.events import KubeServiceGone, KubeServiceObserved, NodeGone, ObservationOrder
from libs.common.contract.kube_service import (
    BALANCER_ANNOTATION,
    HAND_BACK_ANNOTATION,
    KEEP_ANNOTATION,
    USE_ANNOTATION,
    KubeService,
)
from libs.common.contract.subjects import OBSERVED_SERVICE
from libs.common.kube.api import KubeApi
from libs.common.kube.errors import Invalid
from libs.common.observability import metrics
from libs.testbed.sim_apiserver.server import SimApiServer
from services.cloud.balancer_controller import CONCURRENT_SERVICES, BalancerController
from services.cloud.service import CloudService
from services.watcher.observation_publisher import ObservationPublisher
from tests.builders import NOW, make_kube_service, make_kube_service_observed, make_node_observed
from tests.bus_actors import wait_for_value, wait_until
from tests.clocks import ManualClock, RunningClock
from tests.clouds.balancer_actors import CLASS, SERVICES, BalancerCluster, advance, has_finalizer

ORDER = ObservationOrder(epoch=1, resource_version=1)


class DeniedByWebhook(KubeApi):
    """The API server, where a webhook denies each change of a Service."""

    async def patch_service(self, service: KubeService, **fields: Any) -> KubeService:
        raise Invalid("admission webhook denied the request", status=422)


class StrippedByWebhook(KubeApi):
    """The API server, where a webhook removes a part of each change of a Service."""

    stripped = ""
    changes = 0

    async def patch_service(self, service: KubeService, **fields: Any) -> KubeService:
        StrippedByWebhook.changes += 1
        return await super().patch_service(service, **{**fields, self.stripped: None})


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[BalancerCluster]:
    async with (
        SimApiServer.start(tmp_path / "kubernetes") as api_server,
        BalancerCluster.open(api_server, tmp_path) as cluster,
        cluster.run_watcher(),
    ):
        yield cluster


async def test_a_service_gets_an_address_and_keeps_nothing_at_its_end(cluster: BalancerCluster):
    server_id = await cluster.join("web-1")
    async with cluster.run_account():
        await cluster.create_service("web")
        service = await cluster.wait_for_address("web")
        (balancer,) = cluster.balancers
        addresses = [balancer["public_net"][family]["ip"] for family in ("ipv4", "ipv6")]
        entries = service.status.load_balancer.ingress
        assert {each.ip for each in entries} <= set(addresses)
        assert {each.ip_mode for each in entries} == {"VIP"}
        assert has_finalizer(service)
        assert balancer["labels"]["talos-ccm/service-uid"] == service.uid
        await wait_until(lambda: cluster.list_targets() == {server_id}, "the Node is a target")
        await cluster.delete_service("web")
        await cluster.wait_for_end("web")
        await cluster.wait_for_event("web", "DeletedLoadBalancer")
    reasons = await cluster.list_events("web")
    expected = {
        "EnsuringLoadBalancer",
        "EnsuredLoadBalancer",
        "DeletingLoadBalancer",
        "DeletedLoadBalancer",
    }
    assert expected <= set(reasons)


async def test_targets_follow_the_nodes_that_join_are_excluded_and_leave(cluster: BalancerCluster):
    first = await cluster.join("web-1")
    async with cluster.run_account():
        await cluster.create_service("web")
        await wait_until(lambda: cluster.list_targets() == {first}, "the first Node")
        second = await cluster.join("web-2")
        await wait_until(lambda: cluster.list_targets() == {first, second}, "a Node joins")
        label = {"node.kubernetes.io/exclude-from-external-load-balancers": ""}
        await cluster.api.patch_node("web-1", [{"op": "add", "path": "/metadata/labels", "value": label}])
        await wait_until(lambda: cluster.list_targets() == {second}, "a Node is excluded")
        await cluster.admin.delete_node("web-2")
        await wait_until(lambda: cluster.list_targets() == set(), "the last Node is deleted")
        assert len(cluster.balancers) == 1


async def test_only_services_of_the_class_have_load_balancers(cluster: BalancerCluster):
    async with cluster.run_account():
        await cluster.create_service("other", loadBalancerClass="example.com/other")
        await cluster.create_service("unclassed", loadBalancerClass=None)
        await cluster.create_service("web")
        await cluster.wait_for_address("web")
        assert len(cluster.balancers) == 1
        for name in ("other", "unclassed"):
            service = await cluster.find_service(name)
            assert service is not None
            assert not has_finalizer(service)
            assert BALANCER_ANNOTATION not in service.metadata.annotations


async def test_the_record_names_the_project_also_before_any_node_joins(cluster: BalancerCluster):
    (network,) = cluster.project.tables["networks"]
    async with cluster.run_account():
        await cluster.create_service("web")
        await wait_for_value(
            lambda: cluster.find_service("web"),
            lambda found: f'"id":"{network}"' in found.metadata.annotations.get(BALANCER_ANNOTATION, ""),
            "the anchor is recorded",
        )


async def test_an_account_that_is_the_default_has_services_without_a_class(cluster: BalancerCluster):
    async with cluster.run_account(balancer_classes=(), default_balancer_account="prod"):
        await cluster.create_service("web", loadBalancerClass=None)
        await cluster.wait_for_address("web")


async def test_a_prepared_load_balancer_is_used_and_stays_after_its_service(cluster: BalancerCluster):
    number = cluster.project.add_balancer("edge", labels={"team": "edge"})
    server_id = await cluster.join("web-1")
    clock = RunningClock()
    async with cluster.run_account(clock=clock) as service:
        await cluster.create_service("web", annotations={USE_ANNOTATION: str(number)})
        found = await cluster.wait_for_address("web")
        (balancer,) = cluster.balancers
        assert balancer["public_net"]["ipv4"]["ip"] in {
            each.ip for each in found.status.load_balancer.ingress
        }
        await wait_until(lambda: cluster.list_targets() == {server_id}, "the Node is a target")
        await cluster.delete_service("web")
        # In the first minute of a leader, changes of a former one may take effect: the tags stay.
        await advance(service, clock, 60)
        await cluster.wait_until_gone("web")
        await cluster.wait_for_event("web", "LoadBalancerReleased")
    (left,) = cluster.balancers
    assert (left["id"], left["labels"], left["targets"], left["services"]) == (
        number,
        {"team": "edge"},
        [],
        [],
    )


async def test_a_load_balancer_that_its_service_keeps_stays_and_serves_the_next_one(cluster: BalancerCluster):
    await cluster.join("web-1")
    clock = RunningClock()
    async with cluster.run_account(clock=clock) as service:
        await cluster.create_service("web", annotations={KEEP_ANNOTATION: "true"})
        before = await cluster.wait_for_address("web")
        (balancer,) = cluster.balancers
        await cluster.delete_service("web")
        # In the first minute of a leader, changes of a former one may take effect: the tags stay.
        await advance(service, clock, 60)
        await cluster.wait_until_gone("web")
        await cluster.wait_for_event("web", "LoadBalancerReleased")
        (left,) = cluster.balancers
        assert (left["id"], left["labels"], left["targets"], left["services"]) == (balancer["id"], {}, [], [])
        await cluster.create_service("next", annotations={USE_ANNOTATION: str(left["id"])})
        after = await cluster.wait_for_address("next")
        assert after.status.load_balancer == before.status.load_balancer


async def test_a_load_balancer_of_hcloud_ccm_is_taken_over_in_place_and_handed_back(
    cluster: BalancerCluster,
):
    await cluster.create_service("web", loadBalancerClass=None)
    service = await cluster.find_service("web")
    assert service is not None
    native = {"hcloud-ccm/service-uid": service.uid}
    number = cluster.project.add_balancer("native", labels=native)
    # Without the annotation, the account creates one of its own.
    await cluster.annotate("web", {USE_ANNOTATION: str(number)})
    async with cluster.run_account(balancer_classes=(), default_balancer_account="prod"):
        service = await cluster.wait_for_address("web")
        assert f'"id":"{number}"' in service.metadata.annotations[BALANCER_ANNOTATION]
        await wait_until(lambda: bool(cluster.balancers[0]["services"]), "the port is open")
        ports = cluster.balancers[0]["services"]
        assert native.items().isdisjoint(cluster.balancers[0]["labels"].items())
        await cluster.annotate("web", {HAND_BACK_ANNOTATION: str(number)})
        handed_back = await wait_for_value(
            lambda: cluster.find_service("web"),
            lambda found: BALANCER_ANNOTATION not in found.metadata.annotations,
            "the record is gone",
        )
        await cluster.wait_for_event("web", "LoadBalancerReleased")
    assert (handed_back.metadata.finalizers, handed_back.status) == (
        service.metadata.finalizers,
        service.status,
    )
    (balancer,) = cluster.balancers
    assert (balancer["id"], balancer["labels"], balancer["services"]) == (number, native, ports)


async def test_a_service_that_is_no_longer_a_load_balancer_loses_it(cluster: BalancerCluster):
    async with cluster.run_account():
        await cluster.create_service("web")
        await cluster.wait_for_address("web")
        body = {"spec": {"type": "ClusterIP", "loadBalancerClass": None}}
        await cluster.patch_service("web", body)
        await wait_until(lambda: cluster.balancers == [], "the load balancer is gone")
        service = await wait_for_value(
            lambda: cluster.find_service("web"), lambda found: not has_finalizer(found), "no finalizer"
        )
        assert service.status.load_balancer.ingress == ()
        assert BALANCER_ANNOTATION not in service.metadata.annotations


# ---- restarts: nothing is lost, and nothing is made twice


@pytest.mark.parametrize("step", ["create", "change", "delete"])
async def test_a_process_that_ends_while_it_writes_is_continued_by_the_next(
    cluster: BalancerCluster, step: str
):
    """The request has taken effect, and nothing has read its answer."""
    server_id = await cluster.join("web-1")
    method = {"create": "POST", "change": "POST", "delete": "DELETE"}[step]
    path = {
        "create": "/load_balancers",
        "change": r"/load_balancers/\d+/actions/\w+",
        "delete": r"/load_balancers/\d+",
    }[step]
    cluster.cloud.add_fault("hang", path, method=method, count=1)
    hanging = cluster.cloud.faults[-1]
    async with cluster.run_account():
        await cluster.create_service("web")
        if step == "delete":
            await cluster.wait_for_address("web")
            await cluster.delete_service("web")
        elif step == "change":
            await cluster.wait_for_address("web")
            await cluster.join("web-2")
        await wait_until(lambda: hanging.count == 0, "the request hangs")
    async with cluster.run_account():
        if step != "delete":
            await cluster.wait_for_address("web")
            await wait_until(lambda: server_id in cluster.list_targets(), "the Node is a target")
            assert len(cluster.balancers) == 1
            await cluster.delete_service("web")
        await cluster.wait_for_end("web")
    assert cluster.list_requests().count(("POST", "/load_balancers")) == 1


async def test_a_restart_between_the_changes_changes_nothing(cluster: BalancerCluster):
    first = await cluster.join("web-1")
    async with cluster.run_account():
        await cluster.create_service("web")
        await cluster.wait_for_address("web")
        await wait_until(lambda: cluster.list_targets() == {first}, "a target")
    (before,) = cluster.balancers
    second = await cluster.join("web-2")
    async with cluster.run_account():
        await wait_until(lambda: cluster.list_targets() == {first, second}, "a Node joined meanwhile")
    await cluster.admin.delete_node("web-1")
    async with cluster.run_account():
        await wait_until(lambda: cluster.list_targets() == {second}, "a Node left meanwhile")
    assert [each["id"] for each in cluster.balancers] == [before["id"]]
    await cluster.delete_service("web")
    async with cluster.run_account():
        await cluster.wait_for_end("web")


async def test_a_lost_answer_to_a_create_makes_no_double(cluster: BalancerCluster):
    cluster.cloud.add_fault("cut_off", "/load_balancers", method="POST", count=1)
    async with cluster.run_account():
        await cluster.create_service("web")
        await cluster.wait_for_address("web")
        assert len(cluster.balancers) == 1
    assert cluster.list_requests().count(("POST", "/load_balancers")) == 1


# ---- how much is sent


def get_controller(service: CloudService) -> BalancerController:
    assert service.balancers is not None
    return service.balancers


async def test_an_idle_account_lists_once_a_minute_for_all_services(cluster: BalancerCluster):
    clock = ManualClock()
    async with cluster.run_account(clock=clock) as service:
        for number in range(5):
            await cluster.create_service(f"web-{number}")
        for number in range(5):
            await cluster.wait_for_address(f"web-{number}")
        await advance(service, clock, 120)
        before = len(cluster.cloud.requests)
        await advance(service, clock, 600)
        requests = cluster.list_requests(before)
    assert set(requests) == {("GET", "/load_balancers")}
    assert 8 <= len(requests) <= 10


async def test_a_new_node_costs_two_requests_beside_its_change(cluster: BalancerCluster):
    clock = ManualClock()
    async with cluster.run_account(clock=clock) as service:
        await cluster.create_service("web")
        await cluster.wait_for_address("web")
        await advance(service, clock, 20)
        before = len(cluster.cloud.requests)
        server_id = await cluster.join("web-1")
        await wait_until(lambda: cluster.list_targets() == {server_id}, "a target")
        await wait_until(lambda: get_controller(service).is_idle, "its read")  # it takes no ten seconds
        await advance(service, clock, 20)
        requests = cluster.list_requests(before)
    (balancer,) = cluster.balancers
    path = f"/load_balancers/{balancer['id']}"
    assert sorted(requests) == [("GET", path), ("GET", path), ("POST", f"{path}/actions/add_target")]


async def test_services_are_reconciled_in_parallel(cluster: BalancerCluster):
    cluster.cloud.add_fault("hang", "/load_balancers", method="POST", count=CONCURRENT_SERVICES)
    hanging = cluster.cloud.faults[-1]
    for number in range(CONCURRENT_SERVICES):
        await cluster.create_service(f"web-{number}")
    async with cluster.run_account():
        await wait_until(lambda: hanging.count == 0, "a request of each Service waits for its answer")


def count_orphans() -> float:
    return metrics.REGISTRY.get_sample_value("talosccm_load_balancer_orphans", {"account": "prod"}) or 0.0


async def test_a_load_balancer_whose_service_is_gone_is_counted_and_never_deleted(
    cluster: BalancerCluster,
):
    async with cluster.run_account():
        await cluster.create_service("web")
        service = await cluster.wait_for_address("web")
    await cluster.delete_service("web")
    ending = await cluster.api.get_service("default", "web")
    await cluster.api.patch_service(ending, finalizers=())
    async with cluster.run_account():
        await cluster.create_service("other")
        await cluster.wait_for_address("other")
        await wait_until(lambda: count_orphans() == 1.0, "an orphan is counted")
    uids = {each["labels"]["talos-ccm/service-uid"] for each in cluster.balancers}
    assert service.uid in uids


async def test_a_double_that_comes_after_the_end_of_its_service_is_counted_and_named(
    cluster: BalancerCluster, caplog: pytest.LogCaptureFixture
):
    async with cluster.run_account():
        await cluster.create_service("web")
        await cluster.wait_for_address("web")
        (ended,) = cluster.balancers
        await cluster.patch_service("web", {"spec": {"type": "ClusterIP", "loadBalancerClass": None}})
        await wait_for_value(
            lambda: cluster.find_service("web"), lambda found: not found.has_finalizer, "it has ended"
        )
    late = cluster.project.add_balancer("late", labels=ended["labels"])
    async with cluster.run_account():
        await cluster.create_service("other")
        await cluster.wait_for_address("other")
        await wait_until(lambda: count_orphans() == 1.0, "the double is counted")
        assert late in {each["id"] for each in cluster.balancers}
    warned = [each.__dict__["balancer"] for each in caplog.records if "without a Service" in each.message]
    assert str(late) in warned


async def test_a_process_without_its_lease_writes_nothing(cluster: BalancerCluster):
    async with cluster.run_account() as first:
        assert get_controller(first).elector.leading_since() is not None
        async with cluster.run_account(identity="host_other") as second:
            await cluster.create_service("web")
            await cluster.wait_for_address("web")
            assert get_controller(second).elector.leading_since() is None
            assert get_controller(second).outcomes == {}
    assert cluster.list_requests().count(("POST", "/load_balancers")) == 1


async def test_a_process_that_just_lost_its_lease_waits_without_a_failure(cluster: BalancerCluster):
    """The other tasks of a term make a step or two before they are cancelled."""
    await cluster.join("web-1")
    async with cluster.run_account() as service:
        controller = get_controller(service)
        controller.elector.leading_until = float("-inf")
        await cluster.create_service("web")
        outcome = await controller.reconciler.reconcile("default.web")
        assert outcome is not None
        assert (outcome.state, cluster.balancers) == ("waiting", [])


async def test_a_process_that_receives_no_snapshot_does_not_take_the_lease(cluster: BalancerCluster):
    """Such as one that runs all services on a bus in memory, and whose watcher stands by."""
    standby = cluster.run_account(bus_server=MemoryServer(), identity="host_standby")
    async with standby as idle, cluster.run_account():
        await cluster.create_service("web")
        await cluster.wait_for_address("web")
        assert get_controller(idle).elector.leading_since() is None


async def test_a_rejection_by_the_api_server_is_told_on_the_service(cluster: BalancerCluster):
    async with cluster.run_account(client=DeniedByWebhook) as service:
        await cluster.create_service("web")
        await cluster.wait_for_event("web", "SyncLoadBalancerFailed")
        outcomes = get_controller(service).outcomes
        await wait_until(lambda: "default.web" in outcomes, "an outcome")
        assert outcomes["default.web"].state == "waiting"
        assert "admission webhook denied" in outcomes["default.web"].reason
    assert cluster.balancers == []


@pytest.mark.parametrize("stripped", ["annotations", "finalizers"])
async def test_a_record_that_a_webhook_removes_is_not_written_again_without_a_pause(
    cluster: BalancerCluster, stripped: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(StrippedByWebhook, "stripped", stripped)
    monkeypatch.setattr(StrippedByWebhook, "changes", 0)
    async with cluster.run_account(client=StrippedByWebhook) as service:
        await cluster.create_service("web")
        await cluster.wait_for_event("web", "SyncLoadBalancerFailed")
        outcomes = get_controller(service).outcomes
        await wait_until(lambda: "default.web" in outcomes, "an outcome")
        assert outcomes["default.web"].state == "waiting"
        assert "does not keep the record" in outcomes["default.web"].reason
    assert StrippedByWebhook.changes <= 5  # the pauses grow from 5 s on; without them, it is hundreds
    assert cluster.balancers == []


async def test_a_defect_in_reading_a_service_is_told_and_does_not_stop_its_end(
    cluster: BalancerCluster, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object) -> None:
        raise ValueError("text of its owner")

    async with cluster.run_account() as service:
        await cluster.create_service("web")
        await cluster.wait_for_address("web")
        monkeypatch.setattr(HcloudBalancers, "read_request", fail)
        await cluster.join("web-1")
        await cluster.wait_for_event("web", "SyncLoadBalancerFailed")
        outcomes = get_controller(service).outcomes
        await wait_until(lambda: outcomes["default.web"].state == "waiting", "it waits")
        reason = outcomes["default.web"].reason
        assert "ValueError" in reason
        assert "text of its owner" not in reason
        await cluster.delete_service("web")
        await cluster.wait_for_end("web")


async def test_the_end_of_a_service_asks_for_no_certificate(cluster: BalancerCluster):
    cluster.project.add_certificate("www")
    prefix = "load-balancer.hetzner.cloud/"
    names = {f"{prefix}protocol": "https", f"{prefix}http-certificates": "www"}
    async with cluster.run_account():
        await cluster.create_service("web", annotations=names)
        await cluster.wait_for_address("web")
    await cluster.delete_service("web")
    before = len(cluster.cloud.requests)
    async with cluster.run_account():
        await cluster.wait_for_end("web")
        await cluster.wait_for_event("web", "LoadBalancerReleased")  # it names the certificate
    assert not [each for each in cluster.cloud.requests[before:] if each.path.startswith("/certificates")]


# ---- what must not be written


def list_states(service: CloudService) -> list[str]:
    """The states of all Services with load balancers in the account."""
    outcomes = {} if service.balancers is None else service.balancers.outcomes
    return [each.state for each in outcomes.values()]


async def test_a_dry_run_writes_nothing_and_logs_what_it_would_make(
    cluster: BalancerCluster, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO", "services.cloud.service_reconciler")
    async with cluster.run_account(balancer_dry_run=True) as service:
        await cluster.create_service("web")
        await wait_until(lambda: list_states(service) == ["dry-run"], "a step that is not made")
    found = await cluster.find_service("web")
    assert not has_finalizer(found)
    assert {each.method for each in cluster.cloud.requests} == {"GET"}
    assert await cluster.list_events("web") == []
    logged = [each for each in caplog.records if each.message == "dry run: step not made"]
    fields = {(each.__dict__["step"], each.__dict__["targets"]) for each in logged}
    assert fields == {("RecordBalancer", 0)}
    assert "fsn1" in logged[0].__dict__["desired"]


async def test_a_load_balancer_of_another_cluster_is_not_touched(cluster: BalancerCluster):
    labels = {"talos-ccm/cluster": "another", "talos-ccm/service-uid": "another"}
    foreign = cluster.project.add_balancer("web", labels=labels)
    async with cluster.run_account():
        await cluster.create_service("web", annotations={"load-balancer.hetzner.cloud/name": "mine"})
        await cluster.wait_for_address("web")
        await cluster.delete_service("web")
        await wait_until(lambda: len(cluster.balancers) == 1, "ours is gone")
    assert [each["id"] for each in cluster.balancers] == [foreign]
    writes = {each.path for each in cluster.cloud.requests if each.method != "GET"}
    assert not {path for path in writes if path.startswith(f"/load_balancers/{foreign}")}


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_a_record_that_a_user_moves_to_another_account_moves_no_load_balancer(
    cluster: BalancerCluster, is_deleted: bool
):
    """Both accounts have a token of one project."""
    other = cluster.run_account("other", balancer_classes=("other=example.com/other",))
    async with cluster.run_account() as owner, other:
        await cluster.create_service("web")
        service = await cluster.wait_for_address("web")
        await wait_until(lambda: get_controller(owner).is_idle, "nothing is due")
        began = len(cluster.cloud.requests)
        record = service.metadata.annotations[BALANCER_ANNOTATION]
        forged = record.replace('"prod"', '"other"')
        assert forged != record
        await cluster.annotate("web", {BALANCER_ANNOTATION: forged})
        if is_deleted:
            await cluster.delete_service("web")
            await cluster.wait_for_end("web")
        else:
            await cluster.wait_for_event("web", "LoadBalancerReleased")
            await wait_for_value(
                lambda: cluster.find_service("web"),
                lambda found: (
                    has_finalizer(found) and found.metadata.annotations.get(BALANCER_ANNOTATION) == record
                ),
                "the account records its load balancer again",
            )
            assert not [each for each in cluster.list_requests(began) if each[0] != "GET"]
    deleted = [each for each in cluster.cloud.requests if each.method == "DELETE"]
    assert len(deleted) == int(is_deleted)


async def test_an_account_ends_what_it_lists_of_a_service_that_another_account_has(cluster: BalancerCluster):
    """As a create whose answer was lost, before the class changed and a user removed the record."""
    async with cluster.run_account("other", balancer_classes=("other=example.com/other",)):
        await cluster.create_service("web", loadBalancerClass="example.com/other")
        await cluster.wait_for_address("web")
    (kept,) = cluster.balancers
    clock = ManualClock()
    async with cluster.run_account(clock=clock) as service:
        await cluster.create_service("mine")  # for which the account lists each minute
        await cluster.wait_for_address("mine")
        await advance(service, clock, 120)
        late = cluster.project.add_balancer("late", labels=kept["labels"] | {"talos-ccm/account": "prod"})
        await advance(service, clock, 120)
        await wait_until(lambda: late not in cluster.project.tables["load_balancers"], "the late one goes")
        assert kept in cluster.balancers


async def test_messages_about_services_prove_nothing_and_those_about_nodes_move_targets_only(
    cluster: BalancerCluster,
):
    """Whoever has the NATS key of the watcher can publish them."""
    first = await cluster.join("web-1")
    async with cluster.run_account() as running:
        await cluster.create_service("web")
        service = await cluster.wait_for_address("web")
        await wait_until(lambda: cluster.list_targets() == {first}, "a target")
        ghost = make_kube_service("ghost", namespace="default", load_balancer_class=CLASS)
        await cluster.forge(make_kube_service_observed(ghost))
        gone = KubeServiceGone(
            stream_id="", order=ORDER, namespace="default", name="web", uid=service.uid, observed_at=NOW
        )
        await cluster.forge(gone)
        deleted = msgspec.structs.replace(service.metadata, deletion_timestamp=NOW)
        await cluster.forge(make_kube_service_observed(msgspec.structs.replace(service, metadata=deleted)))
        node = await cluster.api.get_node("web-1")
        await cluster.forge(NodeGone(stream_id="", order=ORDER, name="web-1", uid=node.uid, observed_at=NOW))
        await wait_until(lambda: cluster.list_targets() == set(), "the target of the forged message")
        await wait_until(lambda: get_controller(running).is_idle, "nothing is due")
        assert len(cluster.balancers) == 1
        assert await cluster.find_service("ghost") is None
    assert not [each for each in cluster.list_requests() if each[0] == "DELETE"]


async def test_a_node_whose_message_cannot_be_read_stays_a_target(
    cluster: BalancerCluster, monkeypatch: pytest.MonkeyPatch
):
    """As by a process of an older version that starts beside a newer watcher, which can read the message."""
    monkeypatch.setattr(ObservationPublisher, "enqueue_subject", lambda *_: None)
    newer: Any = "of a newer version"
    server_id = await cluster.join("web-1")
    async with cluster.run_account():
        await cluster.create_service("web")
        await cluster.wait_for_address("web")
        await wait_until(lambda: cluster.list_targets() == {server_id}, "a target")
    node = await cluster.api.get_node("web-1")
    spec = msgspec.structs.replace(node.spec, taints=newer)
    await cluster.forge(make_node_observed(msgspec.structs.replace(node, spec=spec)))
    # with a bus, it is not awaited to be ready
    next_process = cluster.run_account(identity="host_next", bus_server=cluster.bus_server)
    async with next_process as running:
        outcomes = get_controller(running).outcomes
        await wait_until(lambda: "default.web" in outcomes, "an outcome")
        await wait_until(lambda: outcomes["default.web"].state == "settled", "settled")
        assert cluster.list_targets() == {server_id}
        [problem] = running.problems()
        assert problem.endswith("is unreadable or fenced, so no target is removed and no route is changed")
        await cluster.forge(make_node_observed(node))
        await wait_until(lambda: running.problems() == (), "all Nodes are known")


async def test_source_ranges_that_the_cloud_cannot_enforce_make_no_load_balancer(cluster: BalancerCluster):
    async with cluster.run_account():
        await cluster.create_service("web", loadBalancerSourceRanges=["10.0.0.0/8"])
        service = await wait_for_value(
            lambda: cluster.find_service("web"), lambda found: found.status.conditions, "a condition"
        )
        (condition,) = service.status.conditions
        assert (condition.reason, condition.status) == ("InvalidField", "True")
        assert "loadBalancerSourceRanges" in condition.message
        assert cluster.balancers == []
        body = {"spec": {"loadBalancerSourceRanges": None}}
        await cluster.patch_service("web", body)
        service = await cluster.wait_for_address("web")
        await wait_for_value(
            lambda: cluster.find_service("web"), lambda found: not found.status.conditions, "no condition"
        )


async def test_a_blocked_service_that_wants_no_load_balancer_any_more_is_told_of_none(
    cluster: BalancerCluster,
):
    async with cluster.run_account():
        await cluster.create_service("web", loadBalancerSourceRanges=["10.0.0.0/8"])
        await wait_for_value(
            lambda: cluster.find_service("web"), lambda found: found.status.conditions, "a condition"
        )
    await cluster.patch_service("web", {"spec": {"type": "ClusterIP", "loadBalancerClass": None}})
    bus = MemoryBus(cluster.bus_server)

    async def is_published() -> bool:
        last = await bus.get_last(f"{OBSERVED_SERVICE}.default.web")
        event = None if last is None else last.event
        return isinstance(event, KubeServiceObserved) and event.service.spec.type == "ClusterIP"

    await wait_until(is_published, "the message about it")
    async with cluster.run_account():
        await wait_for_value(
            lambda: cluster.find_service("web"), lambda found: not found.status.conditions, "no condition"
        )
    await bus.close()


async def test_a_dedicated_server_is_a_target_by_its_address_where_switched_on(cluster: BalancerCluster):
    cluster.project.dedicated_addresses.add("203.0.113.9")
    server = await cluster.join("web-1")
    addresses = [
        {"type": "InternalIP", "address": "10.1.0.9"},
        {"type": "ExternalIP", "address": "203.0.113.9"},
    ]
    body = {
        "metadata": {"name": "metal-1"},
        "spec": {"providerID": "hrobot://7"},
        "status": {"addresses": addresses},
    }
    assert (await cluster.admin.request("POST", "/api/v1/nodes", body=body)).status == 201

    def list_targets() -> set[int | str]:
        targets = cluster.balancers[0]["targets"]
        return {each["ip"]["ip"] if each["type"] == "ip" else each["server"]["id"] for each in targets}

    async with cluster.run_account():
        await cluster.create_service("web")
        await cluster.wait_for_address("web")
        await wait_until(lambda: list_targets() == {server}, "the server of the cloud alone")
    async with cluster.run_account(balancer_options=("prod/ROBOT_ENABLED=true",)):
        await wait_until(lambda: list_targets() == {server, "203.0.113.9"}, "the dedicated server, too")
        await cluster.admin.delete_node("metal-1")
        await wait_until(lambda: list_targets() == {server}, "it goes with its Node")


async def test_a_server_that_is_gone_while_its_node_stays_blocks_no_other_change(cluster: BalancerCluster):
    gone = await cluster.join("web-1")
    async with cluster.run_account() as running:
        await cluster.create_service("web")
        await cluster.wait_for_address("web")
        await wait_until(lambda: cluster.list_targets() == {gone}, "a target")
        cluster.project.remove("servers", gone)  # the cloud drops the target by itself
        await cluster.annotate("web", {"load-balancer.hetzner.cloud/algorithm-type": "least_connections"})
        await cluster.wait_for_event("web", "LoadBalancerTargetIgnored")
        joined = await cluster.join("web-2")
        ports = [
            {"name": name, "port": port, "protocol": "TCP", "nodePort": 30_000 + port}
            for name, port in (("http", 80), ("https", 443))
        ]
        await cluster.admin.request(
            "PATCH",
            f"{SERVICES}/web",
            body={"spec": {"ports": ports}},
            content_type="application/merge-patch+json",
        )

        def list_ports() -> set[int]:
            return {each["listen_port"] for each in cluster.balancers[0]["services"]}

        await wait_until(lambda: cluster.list_targets() == {joined}, "the other Node is a target")
        await wait_until(lambda: list_ports() == {80, 443}, "the ports follow")
        controller = get_controller(running)
        await wait_until(lambda: controller.is_idle, "nothing is due")
        assert controller.outcomes["default.web"].state == "settled"
        service = await cluster.find_service("web")
        assert service is not None
        assert service.status.conditions == ()
        assert "UpdateLoadBalancerFailed" not in await cluster.list_events("web")
        await cluster.delete_service("web")
        await cluster.wait_for_end("web")
