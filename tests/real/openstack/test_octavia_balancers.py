"""Our client of load balancers against Octavia and Neutron themselves."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from libs.clouds.balancers import Target, UnknownOutcome, WriteRejection, WriteSuccess
from libs.clouds.instances import NotFound, Unanswered
from libs.testbed.clouds.api_server import SimApiServer, SimRequest
from libs.testbed.clouds.http_faults import Answer
from libs.testbed.clouds.openstack_services.services import BALANCERS, OpenStackServices, RealOpenStack
from tests.real.openstack.client import (
    INTERNAL,
    OWNER,
    TAGS,
    TARGETS,
    OctaviaClient,
    annotate,
    make_port,
)


def only(found: list[dict[str, Any]]) -> dict[str, Any]:
    [one] = found
    return one


async def test_one_request_creates_all_parts_with_all_tags(client: OctaviaClient):
    ranges = ("192.0.2.0/24", "2001:db8::/32")
    desired = await client.desired(make_port(80), make_port(53, "UDP"), source_ranges=ranges)
    balancer_id = await client.create(desired, *TARGETS)
    balancer = only(client.project.list_parts("loadbalancers"))
    assert (balancer["id"], sorted(balancer["tags"])) == (balancer_id, sorted(TAGS))
    listeners = client.project.list_parts("listeners")
    assert {(each["protocol"], each["protocol_port"]) for each in listeners} == {("TCP", 80), ("UDP", 53)}
    assert {tuple(each["allowed_cidrs"]) for each in listeners} == {("192.0.2.0/24",)}
    pools = client.project.list_parts("pools")
    parts = [*listeners, *pools, *client.project.list_parts("healthmonitors")]
    parts += [each for pool in pools for each in client.project.list_members(pool["id"])]
    assert len(parts) == 2 + 2 + 2 + 4
    assert all(set(TAGS) <= set(each["tags"]) for each in parts)
    found = await client.get(balancer_id)
    assert (found.owner, found.targets, found.has_foreign_tags) == (OWNER, TARGETS, False)
    assert await client.list_all() == (found,)
    assert await client.converge(balancer_id, desired, *TARGETS) == ["POST floatingips"]


async def test_a_floating_address_is_the_status_and_goes_before_the_balancer(client: OctaviaClient):
    desired = await client.desired()
    balancer_id = await client.create(desired, *TARGETS)
    assert client.ours.build_ingress(desired, await client.get(balancer_id)) == ()
    await client.converge(balancer_id, desired, *TARGETS)
    address = only(client.project.list_parts("floatingips"))
    [ingress] = client.ours.build_ingress(desired, await client.get(balancer_id)) or ()
    assert ingress.ip == address["floating_ip_address"]
    assert OWNER.service_uid in address["description"]
    assert await client.ours.delete_balancer(balancer_id, keeps_address=False) == WriteSuccess()
    assert await client.ours.get_balancer(balancer_id) == NotFound()
    for kind in ("loadbalancers", "listeners", "pools", "healthmonitors", "floatingips"):
        assert client.project.list_parts(kind) == []
    methods = [(each.method, each.path.rpartition("/")[0][-14:]) for each in client.server.requests]
    deletions = [path for method, path in methods if method == "DELETE"]
    assert deletions == ["v2.0/floatingips"[-14:], "/loadbalancers"]


async def test_an_internal_balancer_has_its_own_address(client: OctaviaClient):
    desired = await client.desired(annotations=INTERNAL, load_balancer_ip="10.0.0.77")
    balancer_id = await client.create(desired, *TARGETS)
    assert await client.converge(balancer_id, desired, *TARGETS) == []
    [ingress] = client.ours.build_ingress(desired, await client.get(balancer_id)) or ()
    assert ingress.ip == "10.0.0.77"
    assert client.project.list_parts("floatingips") == []


async def test_ports_targets_and_settings_follow_the_service_one_change_at_a_time(client: OctaviaClient):
    first = await client.desired(make_port(80), annotations=INTERNAL)
    balancer_id = await client.create(first, *TARGETS)
    more = await client.desired(make_port(80), make_port(443), annotations=INTERNAL)
    assert await client.converge(balancer_id, more, *TARGETS) == [
        "POST pools",
        "PUT members",
        "POST healthmonitors",
        "POST listeners",
    ]
    third = Target(address="10.0.0.13")
    assert await client.converge(balancer_id, more, TARGETS[0], third) == ["PUT members"] * 2
    assert (await client.get(balancer_id)).targets == (TARGETS[0], third)
    settings = INTERNAL | annotate(
        timeout_client_data="1000",
        connection_limit="7",
        lb_method="LEAST_CONNECTIONS",
        health_monitor_delay="9",
    )
    changed = await client.desired(make_port(443), annotations=settings, source_ranges=("192.0.2.0/24",))
    changes = await client.converge(balancer_id, changed, TARGETS[0], third)
    assert changes[:2] == ["DELETE listeners", "PUT listeners"]  # closed and restricted first
    listener = only(client.project.list_parts("listeners"))
    values = (listener["protocol_port"], listener["timeout_client_data"], listener["connection_limit"])
    assert values == (443, 1000, 7)
    assert listener["allowed_cidrs"] == ["192.0.2.0/24"]
    assert only(client.project.list_parts("pools"))["lb_algorithm"] == "LEAST_CONNECTIONS"
    assert only(client.project.list_parts("healthmonitors"))["delay"] == 9


async def test_the_proxy_protocol_gets_a_new_pool_before_the_old_one_goes(client: OctaviaClient):
    plain = await client.desired(annotations=INTERNAL)
    balancer_id = await client.create(plain, *TARGETS)
    proxied = await client.desired(annotations=INTERNAL | annotate(proxy_protocol="v2"))
    changes = await client.converge(balancer_id, proxied, *TARGETS)
    assert changes == ["POST pools", "PUT members", "POST healthmonitors", "PUT listeners", "DELETE pools"]
    pool = only(client.project.list_parts("pools"))
    assert (pool["protocol"], len(pool["members"])) == ("PROXYV2", 2)
    [ingress] = client.ours.build_ingress(proxied, await client.get(balancer_id)) or ()
    assert ingress.is_proxy


async def test_a_header_makes_the_port_http_when_its_members_are_there(client: OctaviaClient):
    plain = await client.desired(annotations=INTERNAL)
    balancer_id = await client.create(plain, *TARGETS)
    desired = await client.desired(annotations=INTERNAL | annotate(x_forwarded_for="true"))
    changes = await client.converge(balancer_id, desired, *TARGETS)
    assert changes[:3] == ["POST pools", "PUT members", "POST healthmonitors"]
    assert sorted(changes[3:]) == ["DELETE listeners", "DELETE pools", "POST listeners"]
    listener = only(client.project.list_parts("listeners"))
    assert (listener["protocol"], listener["insert_headers"]) == ("HTTP", {"X-Forwarded-For": "true"})
    assert only(client.project.list_parts("pools"))["protocol"] == "HTTP"


async def test_traffic_that_stays_on_its_node_is_checked_at_kube_proxy(client: OctaviaClient):
    off = INTERNAL | annotate(enable_health_monitor="false")
    plain = await client.desired(annotations=off)
    balancer_id = await client.create(plain, *TARGETS)
    assert client.project.list_parts("healthmonitors") == []
    local = await client.desired(annotations=off, health_check_node_port=32000)
    await client.converge(balancer_id, local, *TARGETS)
    monitor = only(client.project.list_parts("healthmonitors"))
    assert (monitor["type"], monitor["url_path"], monitor["expected_codes"]) == ("HTTP", "/healthz", "200")
    pool = only(client.project.list_parts("pools"))
    assert {each["monitor_port"] for each in client.project.list_members(pool["id"])} == {32000}
    await client.converge(balancer_id, plain, *TARGETS)
    assert client.project.list_parts("healthmonitors") == []
    assert {each["monitor_port"] for each in client.project.list_members(pool["id"])} == {None}


async def test_clients_stay_at_their_node_where_the_service_asks_for_it(client: OctaviaClient):
    balancer_id = await client.create(
        await client.desired(annotations=INTERNAL, keeps_clients=True), *TARGETS
    )
    for keeps_clients, changes, types in (
        (True, [], ["SOURCE_IP"]),
        (False, ["PUT pools"], []),
        (True, ["PUT pools"], ["SOURCE_IP"]),
    ):
        desired = await client.desired(annotations=INTERNAL, keeps_clients=keeps_clients)
        assert await client.converge(balancer_id, desired, *TARGETS) == changes
        persistence = only(client.project.list_parts("pools"))["session_persistence"]
        assert [each["type"] for each in (persistence,) if each] == types


async def test_members_get_a_subnet_and_lose_it(client: OctaviaClient):
    plain = await client.desired(annotations=INTERNAL)
    balancer_id = await client.create(plain, *TARGETS)
    placed = await client.desired(annotations=INTERNAL | annotate(member_subnet_id=client.project.subnet))
    for desired, subnet in ((placed, client.project.subnet), (plain, None)):
        assert await client.converge(balancer_id, desired, *TARGETS) == ["PUT members"]
        pool = only(client.project.list_parts("pools"))
        assert {each["subnet_id"] for each in client.project.list_members(pool["id"])} == {subnet}


async def test_the_address_that_a_service_has_stays_once_it_names_it(client: OctaviaClient):
    desired = await client.desired()
    balancer_id = await client.create(desired, *TARGETS)
    await client.converge(balancer_id, desired, *TARGETS)
    address = only(client.project.list_parts("floatingips"))["floating_ip_address"]
    named = await client.desired(load_balancer_ip=address)
    assert await client.converge(balancer_id, named, *TARGETS) == ["PUT floatingips"]
    assert await client.ours.delete_balancer(balancer_id, keeps_address=False) == WriteSuccess()
    left = only(client.project.list_parts("floatingips"))
    assert (left["floating_ip_address"], left["port_id"], left["description"]) == (address, None, "")


async def test_a_listing_follows_members_that_another_hand_changes(client: OctaviaClient):
    desired = await client.desired(annotations=INTERNAL)
    await client.create(desired, *TARGETS)
    [before] = await client.list_all()
    requests = len(client.server.requests)
    assert await client.list_all() == (before,)
    assert len(client.server.requests) - requests == 5  # no request for the members of each pool
    pool = only(client.project.list_parts("pools"))
    member = client.project.list_members(pool["id"])[0]
    path = f"{BALANCERS}/pools/{pool['id']}/members/{member['id']}"
    services = client.project.services
    services.request("load-balancer", "DELETE", path, project=client.project.id)
    while any(each["provisioning_status"] != "ACTIVE" for each in client.project.list_parts("loadbalancers")):
        pass  # Octavia makes the change
    [after] = await client.list_all()
    assert len(after.targets) == 1


# ---- whose it is


async def test_parts_and_balancers_of_others_are_not_touched(client: OctaviaClient):
    services, project = client.project.services, client.project
    desired = await client.desired(annotations=INTERNAL)
    foreign = services.create(
        "load-balancer",
        f"{BALANCERS}/loadbalancers",
        project=project.id,
        name="kube_service_kubernetes_default_web",
        vip_subnet_id=project.subnet,
        tags=["kube_service_kubernetes_default_web"],
    )
    balancer_id = await client.create(desired, *TARGETS)
    other = {"loadbalancer_id": balancer_id, "protocol": "TCP", "protocol_port": 9000}
    services.create("load-balancer", f"{BALANCERS}/listeners", project=project.id, **other)
    other_cluster = msgspec.structs.replace(OWNER, cluster_uid="other")
    await client.ours.create_balancer(desired, (), other_cluster)
    assert [each.id for each in await client.list_all()] == [balancer_id]
    await client.converge(balancer_id, await client.desired(make_port(81), annotations=INTERNAL), *TARGETS)
    mine = [each for each in project.list_parts("listeners") if not each["tags"]]
    assert only(mine)["protocol_port"] == 9000
    assert (await client.get(foreign["id"])).has_foreign_tags


async def test_a_prepared_balancer_is_released_and_stays(client: OctaviaClient):
    services, project = client.project.services, client.project
    prepared = services.create(
        "load-balancer",
        f"{BALANCERS}/loadbalancers",
        project=project.id,
        vip_subnet_id=project.subnet,
        tags=["team-a"],
    )["id"]
    desired = await client.desired()
    change = client.ours.plan_adoption(desired, TARGETS, await client.get(prepared), OWNER)
    while isinstance(result := await client.ours.change_balancer(prepared, change), WriteRejection):  # type: ignore[arg-type]
        assert result.kind == "busy"
    await client.converge(prepared, desired, *TARGETS)
    assert (await client.get(prepared)).is_protected
    while changes := client.ours.plan_release(await client.get(prepared), keeps_address=False):
        assert await client.ours.change_balancer(prepared, changes[0]) == WriteSuccess()
    balancer = only(project.list_parts("loadbalancers"))
    assert (balancer["tags"], balancer["listeners"], balancer["pools"]) == (["team-a"], [], [])
    assert project.list_parts("floatingips") == []


async def test_a_kept_address_is_detached_and_loses_its_tags(client: OctaviaClient):
    desired = await client.desired(annotations=annotate(keep_floatingip="true"))
    balancer_id = await client.create(desired, *TARGETS)
    await client.converge(balancer_id, desired, *TARGETS)
    assert await client.ours.delete_balancer(balancer_id, keeps_address=True) == WriteSuccess()
    address = only(client.project.list_parts("floatingips"))
    assert (address["port_id"], address["description"]) == (None, "")
    assert await client.list_all() == ()


async def test_a_reserved_address_is_used_and_stays(client: OctaviaClient):
    services, project = client.project.services, client.project
    reserved = services.create(
        "network",
        "/v2.0/floatingips",
        project=project.id,
        floating_network_id=project.external,
        description="of the shop",
    )
    address = reserved["floating_ip_address"]
    desired = await client.desired(load_balancer_ip=address)
    balancer_id = await client.create(desired, *TARGETS)
    assert await client.converge(balancer_id, desired, *TARGETS) == ["PUT floatingips"]
    [ingress] = client.ours.build_ingress(desired, await client.get(balancer_id)) or ()
    assert ingress.ip == address
    assert await client.ours.delete_balancer(balancer_id, keeps_address=False) == WriteSuccess()
    left = only(project.list_parts("floatingips"))
    assert (left["id"], left["port_id"], left["description"]) == (reserved["id"], None, "of the shop")


async def test_a_reserved_address_that_another_hand_takes_meanwhile_is_not_claimed(client: OctaviaClient):
    services, project = client.project.services, client.project
    network = {"project": project.id, "floating_network_id": project.external}
    reserved = services.create("network", "/v2.0/floatingips", **network)
    desired = await client.desired(load_balancer_ip=reserved["floating_ip_address"])
    balancer_id = await client.create(desired, *TARGETS)
    [claim] = client.ours.plan_changes(desired, TARGETS, await client.get(balancer_id))
    port = services.create("network", "/v2.0/ports", project=project.id, network_id=project.network)["id"]
    path = f"/v2.0/floatingips/{reserved['id']}"
    body = msgspec.json.encode({"floatingip": {"port_id": port}})
    assert services.request("network", "PUT", path, body, project=project.id).status == 200
    result = await client.ours.change_balancer(balancer_id, claim)
    assert isinstance(result, WriteRejection)
    assert result.kind == "busy"
    taken = only(project.list_parts("floatingips"))
    assert (taken["port_id"], taken["description"]) == (port, "")
    parsed = await client.ours.resolve_names(client.parse(load_balancer_ip=reserved["floating_ip_address"]))
    assert not isinstance(parsed, Unanswered)
    assert f"is used by port {port}" in parsed.invalid[0].reason


async def test_an_address_outlives_a_balancer_that_another_hand_deletes_and_is_found(client: OctaviaClient):
    desired = await client.desired()
    balancer_id = await client.create(desired, *TARGETS)
    await client.converge(balancer_id, desired, *TARGETS)
    path = f"{BALANCERS}/loadbalancers/{balancer_id}?cascade=true"
    client.project.services.request("load-balancer", "DELETE", path, project=client.project.id)
    while client.project.list_parts("loadbalancers"):
        pass  # Octavia makes the change
    [remnant] = await client.list_all()
    assert (remnant.is_remnant, remnant.owner) == (True, OWNER)
    fresh = await client.create(desired, *TARGETS)
    assert await client.converge(fresh, desired, *TARGETS) == ["PUT floatingips"]  # the same address again
    assert [each.is_remnant for each in await client.list_all()] == [False]
    await client.ours.delete_balancer(fresh, keeps_address=True)
    await client.ours.delete_balancer(remnant.id, keeps_address=False)
    assert len(client.project.list_parts("floatingips")) == 1  # kept: it has no tags any more


# ---- results of writes


async def test_a_balancer_that_octavia_still_builds_is_busy(client: OctaviaClient):
    services, project = client.project.services, client.project
    with services.ending_changes_with("hold"):
        path, fields = f"{BALANCERS}/loadbalancers", {"vip_subnet_id": project.subnet, "tags": TAGS}
        balancer_id = services.create("load-balancer", path, project=project.id, **fields)["id"]
        found = await client.get(balancer_id)
        assert (found.is_busy, found.is_building) == (True, True)
        assert found.busy_since is not None
        assert abs(datetime.now(UTC) - found.busy_since) < timedelta(minutes=10)
        result = await client.ours.delete_balancer(balancer_id, keeps_address=False)
        assert isinstance(result, WriteRejection)
        assert result.kind == "busy"


async def test_the_state_error_is_reported_and_a_deletion_is_possible(client: OctaviaClient):
    desired = await client.desired(annotations=INTERNAL)
    with client.project.services.ending_changes_with("fail"):
        result = await client.ours.create_balancer(desired, TARGETS, OWNER)
    assert isinstance(result, WriteSuccess)
    assert result.is_building
    balancer_id = result.balancer_id
    failed = await client.get(balancer_id)
    assert failed.has_failed
    assert client.ours.plan_changes(desired, TARGETS[:1], failed) == ()
    [change] = client.ours.plan_changes(
        desired, TARGETS[:1], msgspec.structs.replace(failed, has_failed=False)
    )
    refused = await client.ours.change_balancer(balancer_id, change)
    assert isinstance(refused, WriteRejection)
    assert (refused.kind, "state ERROR" in refused.reason) == ("invalid", True)
    assert await client.ours.delete_balancer(balancer_id, keeps_address=False) == WriteSuccess()


async def test_a_change_that_fails_has_no_known_result(client: OctaviaClient):
    desired = await client.desired(annotations=INTERNAL)
    balancer_id = await client.create(desired, *TARGETS)
    [change] = client.ours.plan_changes(desired, TARGETS[:1], await client.get(balancer_id))
    with client.project.services.ending_changes_with("fail"):
        assert isinstance(await client.ours.change_balancer(balancer_id, change), UnknownOutcome)


async def test_quotas_and_invalid_values_are_rejections_with_the_reason_of_the_cloud(client: OctaviaClient):
    services, project = client.project.services, client.project
    body = b'{"quota": {"load_balancer": 0}}'
    services.request("load-balancer", "PUT", f"{BALANCERS}/quotas/{project.id}", body)
    desired = await client.desired(annotations=INTERNAL)
    result = await client.ours.create_balancer(desired, TARGETS, OWNER)
    assert isinstance(result, WriteRejection)
    assert (result.kind, "Quota has been met" in result.reason) == ("limit", True)
    services.request("load-balancer", "PUT", f"{BALANCERS}/quotas/{project.id}", body.replace(b"0", b"-1"))
    unknown = INTERNAL | annotate(subnet_id="5c1a7b4e-0000-4000-8000-000000000009")
    result = await client.ours.create_balancer(await client.desired(annotations=unknown), (), OWNER)
    assert isinstance(result, WriteRejection)
    assert (result.kind, "Subnet" in result.reason) == ("invalid", True)
    assert await client.list_all() == ()


async def test_a_quota_of_addresses_is_a_limit(client: OctaviaClient):
    project = client.project
    project.services.request("network", "PUT", f"/v2.0/quotas/{project.id}", b'{"quota": {"floatingip": 0}}')
    desired = await client.desired()
    balancer_id = await client.create(desired, *TARGETS)
    [change] = client.ours.plan_changes(desired, TARGETS, await client.get(balancer_id))
    result = await client.ours.change_balancer(balancer_id, change)
    assert isinstance(result, WriteRejection)
    assert result.kind == "limit"


async def test_a_create_whose_answer_is_lost_is_found_by_its_tags(client: OctaviaClient):
    desired = await client.desired(annotations=INTERNAL)
    client.server.add_fault("drop", "/load-balancer/.*", method="POST")
    assert isinstance(await client.ours.create_balancer(desired, TARGETS, OWNER), UnknownOutcome)
    client.server.faults.clear()
    [found] = await client.list_all()
    assert found.owner == OWNER


async def test_an_address_whose_create_was_lost_is_not_created_twice(client: OctaviaClient):
    desired = await client.desired()
    balancer_id = await client.create(desired, *TARGETS)
    [change] = client.ours.plan_changes(desired, TARGETS, await client.get(balancer_id))
    client.server.add_fault("drop", "/network/.*", method="POST")
    assert isinstance(await client.ours.change_balancer(balancer_id, change), UnknownOutcome)
    client.server.faults.clear()
    result = await client.ours.change_balancer(balancer_id, change)
    assert isinstance(result, WriteRejection)  # the port has an address
    assert await client.converge(balancer_id, desired, *TARGETS) == []
    assert len(client.project.list_parts("floatingips")) == 1


class _FirstPageOfOthers(RealOpenStack):
    """Neutron as an administrator sees it: the first page of floating addresses has those of others only."""

    _others = tuple(
        {
            "id": str(UUID(int=number)),
            "project_id": "another",
            "floating_ip_address": f"198.51.100.{number}",
            "floating_network_id": str(UUID(int=0)),
            "port_id": None,
            "description": "",
            "created_at": "2026-01-01T00:00:00Z",
        }
        for number in (1, 2)
    )

    def answer(self, request: SimRequest) -> Answer:
        """Return the answer of Neutron from the second page on."""
        if request.method != "GET" or not request.path.endswith("/floatingips"):
            return super().answer(request)
        query = dict(request.query)
        if query.pop("marker", "") != self._others[-1]["id"]:
            links = [{"rel": "next", "href": "https://neutron"}]
            return Answer(status=200, document={"floatingips": self._others, "floatingips_links": links})
        return super().answer(msgspec.structs.replace(request, query=query))


async def test_a_page_of_other_projects_addresses_hides_none_of_ours(
    services: OpenStackServices, tmp_path: Path
):
    cloud: RealOpenStack = _FirstPageOfOthers(services)
    async with (
        SimApiServer.start(cloud) as server,
        OctaviaClient.open(server, tmp_path) as client,
    ):
        desired = await client.desired()
        balancer_id = await client.create(desired, *TARGETS)
        assert await client.converge(balancer_id, desired, *TARGETS) == ["POST floatingips"]
        [ingress] = client.ours.build_ingress(desired, await client.get(balancer_id)) or ()
        assert ingress.ip.startswith("203.0.113.")
        assert await client.ours.delete_balancer(balancer_id, keeps_address=False) == WriteSuccess()
        assert client.project.list_parts("floatingips") == []
