"""Our client of load balancers of Thalassa Cloud, against the API that its own Go module agrees with."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from libs.clouds.account_session import AccountOptions
from libs.clouds.balancers import (
    Balancer,
    BalancerRequest,
    Balancers,
    Ingress,
    InvalidField,
    Owner,
    ParsedRequest,
    Port,
    Target,
    UnknownOutcome,
    WriteRejection,
    WriteResult,
    WriteSuccess,
)
from libs.clouds.instances import Anchor, NotFound, Unanswered
from libs.clouds.thalassa.balancers.annotations import PREFIX
from libs.clouds.thalassa.balancers.desired import DesiredBalancer
from libs.clouds.thalassa.balancers.plan import Change
from libs.clouds.thalassa.balancers.thalassa_balancers import ThalassaBalancers
from libs.clouds.thalassa.thalassa_api import ThalassaApi
from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.clouds.api_server import SimRequest
from libs.testbed.clouds.http_faults import Answer
from tests.clocks import run_virtually
from tests.contract.clouds.accounts import SECRET, ThalassaAccount, open_thalassa

OWNER = Owner(
    cluster_uid="5c1a7b4e-0000-4000-8000-000000000001",
    service_uid="5c1a7b4e-0000-4000-8000-000000000002",
    account="prod",
)
LABELS = {
    "talos-ccm/cluster": OWNER.cluster_uid,
    "talos-ccm/service-uid": OWNER.service_uid,
    "talos-ccm/account": OWNER.account,
}
LABELS_IN_FILE = """
defaultSubnet: nodes
additionalLabels: {cost: web, talos-ccm/cluster: other, k8s.thalassa.cloud/kubernetes-cluster: other}
"""
NATIVE_UID = "k8s.thalassa.cloud/kubernetes-service-uid"


class Client:
    """Our client of an organisation with one VPC, and what its tests do again and again."""

    def __init__(self, opened: ThalassaAccount, folder: Path, **options: Any) -> None:
        self.server, self.organisation = opened.server, opened.organisation
        self.sim = self.organisation.balancers
        self.vpc = self.organisation.add_vpc("net")
        opened.keys |= {"vpcIdentity": self.vpc}
        self.file = opened.write_credential(folder)
        account: dict[str, Any] = {"user_agent": "talos-ccm/test", "endpoint": opened.server.endpoint}
        if "anchor" in options:
            account["anchor"] = options.pop("anchor")
        self.api = ThalassaApi(AccountOptions(credential=self.file, **account))
        defaults: dict[str, Any] = {
            "requests_per_minute": 10_000,
            "write_deadline_seconds": HANG_SECONDS,
            "first_poll_seconds": 0.001,
        }
        self.ours: ThalassaBalancers = ThalassaBalancers(self.api, **(defaults | options))
        self._conforms: Balancers[DesiredBalancer, Change] = self.ours

    async def close(self) -> None:
        await self.ours.close()
        await self.api.close()

    def add_target(self, vpc: str = "") -> Target:
        name = f"machine-{len(self.organisation.tables['machines'])}"
        return Target(instance_id=self.organisation.add_machine(name, vpc=vpc or self.vpc))

    async def parse(self, *ports: int, **annotations: str) -> ParsedRequest[DesiredBalancer]:
        request = BalancerRequest(
            namespace="default",
            name="web",
            uid=OWNER.service_uid,
            annotations={PREFIX + name.replace("_", "-"): text for name, text in annotations.items()},
            ports=tuple(
                Port(name=f"port-{port}", protocol="TCP", port=port, node_port=30000 + port)
                for port in ports or (80,)
            ),
        )
        parsed = await self.ours.resolve_names(self.ours.read_request(request))
        assert isinstance(parsed, ParsedRequest), parsed
        return parsed

    async def desire(self, *ports: int, **annotations: str) -> DesiredBalancer:
        parsed = await self.parse(*ports, **annotations)
        assert parsed.invalid == ()
        return parsed.desired

    async def create(self, **annotations: str) -> str:
        result = await self.ours.create_balancer(await self.desire(**annotations), (), OWNER)
        assert isinstance(result, WriteSuccess), result
        return result.balancer_id

    async def get(self, balancer_id: str) -> Balancer:
        found = await self.ours.get_balancer(balancer_id)
        assert isinstance(found, Balancer), found
        return found

    async def listing(self, *, reads_parts: bool = True) -> dict[str, Balancer]:
        found = await self.ours.list_balancers(OWNER.cluster_uid, reads_parts=reads_parts)
        assert isinstance(found, tuple), found
        return {each.id: each for each in found}

    async def converge(self, balancer_id: str, desired: DesiredBalancer, *targets: Target) -> list[Change]:
        """Make changes until nothing differs but what the cloud rejects; return those that it accepted."""
        accepted: list[Change] = []
        rejected: set[Change] = set()
        while True:
            planned = self.ours.plan_changes(desired, targets, await self.get(balancer_id))
            left = [each for each in planned if each not in rejected]
            if not left:
                return accepted
            result = await self.ours.change_balancer(balancer_id, left[0])
            if isinstance(result, WriteRejection):
                rejected.add(left[0])
            else:
                assert isinstance(result, WriteSuccess), (left[0], result)
                accepted.append(left[0])
            assert len(accepted) + len(rejected) < 50

    def writes(self) -> list[tuple[str, str]]:
        return [(each.method, each.path) for each in self.server.requests if each.method != "GET"]

    @property
    def balancers(self) -> list[dict[str, Any]]:
        return list(self.organisation.tables["loadbalancers"].values())

    @property
    def groups(self) -> list[dict[str, Any]]:
        return list(self.organisation.tables["loadbalancer-target-groups"].values())

    @property
    def listeners(self) -> list[dict[str, Any]]:
        return [each for balancer in self.balancers for each in balancer["_listeners"]]

    def list_machines(self) -> list[set[str]]:
        """The machines of each target group."""
        return [
            {each["virtualMachineInstance"]["identity"] for each in group["_attachments"]}
            for group in self.groups
        ]


@pytest.fixture
async def account() -> AsyncIterator[ThalassaAccount]:
    async with open_thalassa() as opened:
        yield opened


@pytest.fixture
async def client(account: ThalassaAccount, tmp_path: Path) -> AsyncIterator[Client]:
    opened = Client(account, tmp_path)
    yield opened
    await opened.close()


# ---- reads and writes without faults


@pytest.mark.parametrize("shows_parts", [True, False])
async def test_a_balancer_gets_ports_and_targets_and_then_an_address(client: Client, shows_parts: bool):
    """Also where lists leave out listeners and attachments."""
    client.sim.shows_parts = shows_parts
    client.sim.build_seconds = 0.02
    targets = client.add_target(), client.add_target()
    balancer_id = await client.create()
    [made] = client.balancers
    assert made["labels"] == LABELS
    desired = await client.desire(80, 443)
    assert client.ours.build_ingress(desired, await client.get(balancer_id)) is None
    accepted = await client.converge(balancer_id, desired, *targets)
    assert len(accepted) == 6  # a group, its targets and a listener, of each port
    assert client.list_machines() == [{each.instance_id for each in targets}] * 2
    assert [(each["port"], each["protocol"], each["allowedSources"]) for each in client.listeners] == [
        (80, "tcp", []),
        (443, "tcp", []),
    ]
    assert {each["labels"]["talos-ccm/port"] for each in client.groups} == {"tcp-80", "tcp-443"}
    found = await client.get(balancer_id)
    assert (found.owner, found.is_busy, found.targets) == (OWNER, False, targets)
    address = client.balancers[0]["externalIpAddresses"][0]
    assert client.ours.build_ingress(desired, found) == (Ingress(ip=address, is_proxy=True),)
    assert await client.listing() == {balancer_id: found}


ACL = "192.0.2.0/24"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"loadbalancing_policy": "MAGLEV", "max_connections": "7", "idle_connection_timeout": "60"}),
        ({}, {"enable_proxy_protocol": "true", "acl_allowed_sources": ACL}),
        ({"acl_allowed_sources": ACL}, {}),
        ({"acl_port_port-80": ACL}, {"acl_port_80": "198.51.100.0/24,2001:db8::/32"}),
        ({}, {"health_check_enabled": "true", "health_check_port": "8080", "health_check_protocol": "tcp"}),
        ({"health_check_enabled": "true", "health_check_port": "8080"}, {}),
    ],
)
async def test_the_api_accepts_every_change_from_one_balancer_to_another(
    client: Client, before: dict[str, str], after: dict[str, str]
):
    target = client.add_target()
    balancer_id = await client.create(**before)
    await client.converge(balancer_id, await client.desire(**before), target)
    identity = client.listeners[0]["identity"]
    changes = await client.converge(balancer_id, await client.desire(**after), target)
    assert {each.method for each in changes} == {"PUT"}
    assert client.listeners[0]["identity"] == identity
    await client.converge(balancer_id, await client.desire(8080), target)
    assert [each["port"] for each in client.listeners] == [8080]
    assert [each["targetPort"] for each in client.groups] == [38080]


async def test_settings_of_the_balancer_follow_its_annotations(client: Client):
    client.organisation.reserved_ips["ip-1"] = "203.0.113.9"
    group = client.organisation.add_security_group(client.vpc)
    own = client.organisation.tables["vpcs"][client.vpc]["subnets"]
    own.append(own[0] | {"identity": "subnet-2", "slug": "edge"})
    balancer_id = await client.create()
    chosen = {"security_groups": group, "reserved_ip": "ip-1", "subnet": "edge"}
    await client.converge(balancer_id, await client.desire(**chosen))
    [made] = client.balancers
    assert made["externalIpAddresses"] == ["203.0.113.9"]
    assert (made["subnetIdentity"], [each["identity"] for each in made["securityGroups"]]) == (
        "subnet-2",
        [group],
    )
    assert made["labels"] == LABELS
    await client.converge(balancer_id, await client.desire())
    [made] = client.balancers
    assert made["externalIpAddresses"] != ["203.0.113.9"]
    # what restricts access stays until an annotation names something else
    assert [each["identity"] for each in made["securityGroups"]] == [group]


async def test_settings_are_part_of_the_creation(client: Client):
    client.organisation.reserved_ips["ip-1"] = "203.0.113.9"
    group = client.organisation.add_security_group(client.vpc)
    await client.create(security_groups=group, reserved_ip="ip-1")
    [made] = client.balancers
    assert (made["reservedIpIdentity"], len(made["securityGroups"])) == ("ip-1", 1)


async def test_a_setting_that_the_cloud_rejects_prevents_no_other_change(client: Client):
    target = client.add_target()
    balancer_id = await client.create()
    await client.converge(
        balancer_id, await client.desire(reserved_ip="ip-0", security_groups="sg-0"), target
    )
    assert [each["port"] for each in client.listeners] == [80]
    assert client.list_machines() == [{target.instance_id}]


async def test_a_public_balancer_does_not_become_internal_and_says_so(client: Client):
    balancer_id = await client.create()
    desired = await client.desire(internal="true")
    await client.converge(balancer_id, desired)
    *_, last = client.ours.plan_changes(desired, (), await client.get(balancer_id))
    sent = len(client.writes())
    result = await client.ours.change_balancer(balancer_id, last)
    assert isinstance(result, WriteRejection)
    assert "the load balancer stays public" in result.reason
    assert len(client.writes()) == sent


async def test_an_internal_balancer_has_its_own_address_only(client: Client):
    balancer_id = await client.create(internal="true")
    desired = await client.desire(internal="true")
    await client.converge(balancer_id, desired)
    [made] = client.balancers
    assert made["externalIpAddresses"] == []
    expected = (Ingress(ip=made["internalIpAddresses"][0], is_proxy=True),)
    assert client.ours.build_ingress(desired, await client.get(balancer_id)) == expected


async def test_a_change_of_the_protocol_keeps_the_port_and_replaces_its_target_group(client: Client):
    target = client.add_target()
    balancer_id = await client.create()
    await client.converge(balancer_id, await client.desire(53), target)
    [former] = client.groups
    port = Port(name="dns", protocol="UDP", port=53, node_port=30053)
    await client.converge(balancer_id, await _desire_udp(client, port), target)
    [listener], [group] = client.listeners, client.groups
    assert (listener["protocol"], listener["targetGroup"]) == ("udp", group["identity"])
    assert group["identity"] != former["identity"]


async def _desire_udp(client: Client, port: Port) -> DesiredBalancer:
    request = BalancerRequest(
        namespace="default", name="web", uid=OWNER.service_uid, annotations={}, ports=(port,)
    )
    parsed = await client.ours.resolve_names(client.ours.read_request(request))
    assert isinstance(parsed, ParsedRequest)
    assert parsed.invalid == ()
    return parsed.desired


async def test_a_machine_that_the_cloud_rejects_keeps_no_other_from_traffic(client: Client):
    good = [client.add_target() for _ in range(3)]
    bad = client.add_target(client.organisation.add_vpc("other"))
    balancer_id = await client.create()
    desired = await client.desire()
    await client.converge(balancer_id, desired, *good, bad)
    assert client.list_machines() == [{each.instance_id for each in good}]
    [left] = client.ours.plan_changes(desired, (*good, bad), await client.get(balancer_id))
    result = await client.ours.change_balancer(balancer_id, left)
    assert isinstance(result, WriteRejection)
    assert result.target == bad
    await client.converge(balancer_id, desired, good[0], bad)
    assert client.list_machines() == [{good[0].instance_id}]


async def test_all_targets_of_a_group_are_one_request(client: Client):
    targets = [client.add_target() for _ in range(25)]
    balancer_id = await client.create()
    accepted = await client.converge(balancer_id, await client.desire(), *targets)
    assert [each.path.rpartition("/")[2] for each in accepted] == [
        "loadbalancer-target-groups",
        "attachments",
        "listeners",
    ]
    assert len(client.list_machines()[0]) == 25


async def test_a_deletion_does_not_wait_behind_changes_of_targets(account: ThalassaAccount, tmp_path: Path):
    client = Client(account, tmp_path, requests_per_minute=60, write_deadline_seconds=1.0)
    try:
        balancer_id = await client.create()
        desired, target = await client.desire(), client.add_target()
        await client.converge(balancer_id, desired, target)
        [detach] = client.ours.plan_changes(desired, (), await client.get(balancer_id))
        while len(client.server.requests) < 48:  # changes may use 30, reads 54
            await client.get(balancer_id)
        held = await client.ours.change_balancer(balancer_id, detach)
        assert isinstance(held, WriteRejection)
        assert held.kind == "held_back"
        result = await client.ours.delete_balancer(balancer_id, keeps_address=False)
        assert isinstance(result, WriteSuccess), result
    finally:
        await client.close()


async def test_labels_of_the_config_file_are_on_all_objects(client: Client):
    client.file.write_text(client.file.read_text() + LABELS_IN_FILE)
    balancer_id = await client.create()
    await client.converge(balancer_id, await client.desire())
    assert client.balancers[0]["labels"] == LABELS | {"cost": "web"}
    assert [each["labels"].get("cost") for each in (*client.balancers, *client.groups)] == ["web", "web"]


async def test_an_unknown_subnet_or_vpc_is_an_invalid_field_and_an_outage_no_answer(client: Client):
    parsed = await client.parse(subnet="nowhere")
    assert [each.field for each in parsed.invalid] == [f"{PREFIX}subnet"]
    result = await client.ours.create_balancer(parsed.desired, (), OWNER)
    assert isinstance(result, WriteRejection)
    assert client.writes() == []
    client.organisation.remove("vpcs", client.vpc)
    assert [each.field for each in (await client.parse()).invalid] == ["vpcIdentity"]
    client.server.add_fault("service_error")
    request = BalancerRequest(namespace="default", name="web", uid="u", annotations={}, ports=())
    assert isinstance(await client.ours.resolve_names(client.ours.read_request(request)), Unanswered)


async def test_an_invalid_field_is_never_sent(client: Client):
    invalid = (await client.parse(acl_allowed_sources="office")).desired
    assert isinstance(await client.ours.create_balancer(invalid, (), OWNER), WriteRejection)
    assert client.writes() == []


async def test_a_found_subnet_is_asked_for_once(client: Client):
    await client.parse()
    sent = len(client.server.requests)
    await client.parse()
    assert len(client.server.requests) == sent


async def test_a_subnet_is_asked_for_again_after_a_rejected_create(client: Client):
    """Another hand replaced it: the same name has another identity."""
    desired = await client.desire(subnet="nodes")
    [subnet] = client.organisation.tables["vpcs"][client.vpc]["subnets"]
    subnet["identity"] = "subnet-new"
    assert isinstance(await client.ours.create_balancer(desired, (), OWNER), WriteRejection)
    await client.create(subnet="nodes")
    assert client.balancers[0]["subnetIdentity"] == "subnet-new"


async def test_the_vpc_of_the_account_wins_over_that_of_the_file(account: ThalassaAccount, tmp_path: Path):
    vpc = account.organisation.add_vpc("edge")
    client = Client(account, tmp_path, anchor=Anchor("vpc", vpc))
    await client.create()
    assert client.balancers[0]["vpcIdentity"] == vpc
    await client.close()


async def test_a_config_file_that_cannot_be_read_changes_nothing(client: Client):
    client.file.unlink()
    request = BalancerRequest(namespace="default", name="web", uid="u", annotations={}, ports=())
    parsed = client.ours.read_request(request)
    assert "config file" in {each.field for each in parsed.invalid}
    assert not parsed.desired.may_open_ports


# ---- the end


async def test_a_deletion_leaves_target_groups_that_are_remnants_and_go(client: Client):
    client.sim.delete_seconds = 0.02
    balancer_id = await client.create()
    await client.converge(balancer_id, await client.desire(80, 443), client.add_target())
    assert await client.ours.delete_balancer(balancer_id, keeps_address=False) == WriteSuccess()
    assert await client.ours.get_balancer(balancer_id) == NotFound()
    assert await client.ours.delete_balancer(balancer_id, keeps_address=False) == NotFound()
    left = await client.listing()
    assert [(each.owner, each.is_remnant) for each in left.values()] == [(OWNER, True)] * 2
    for remnant_id, remnant in left.items():
        assert await client.ours.get_balancer(remnant_id) == remnant
        assert await client.ours.delete_balancer(remnant_id, keeps_address=False) == WriteSuccess()
        assert await client.ours.get_balancer(remnant_id) == NotFound()
    assert (client.groups, await client.listing()) == ([], {})


async def test_the_next_balancer_of_the_service_uses_what_is_left(client: Client):
    target = client.add_target()
    balancer_id = await client.create()
    await client.converge(balancer_id, await client.desire(), target)
    client.organisation.remove("loadbalancers", balancer_id)
    [group] = client.groups
    again = await client.create()
    [listen] = await client.converge(again, await client.desire(), target)
    assert listen.path.endswith("/listeners")
    assert client.listeners[0]["targetGroup"] == group["identity"]


async def test_a_deletion_that_does_not_end_by_the_deadline_is_unknown(
    account: ThalassaAccount, tmp_path: Path
):
    client = Client(account, tmp_path, write_deadline_seconds=2)
    balancer_id = await client.create()
    client.sim.delete_seconds = 3600
    assert isinstance(await client.ours.delete_balancer(balancer_id, keeps_address=False), UnknownOutcome)
    assert (await client.get(balancer_id)).is_busy
    await client.close()


async def test_a_deletion_ends_with_the_state_deleted(client: Client):
    client.sim.delete_seconds = 3600
    balancer_id = await client.create()

    def mark_deleted(request: SimRequest, answer: Answer) -> None:
        if request.method == "DELETE":
            client.balancers[0]["status"] = "deleted"

    client.server.after_answer = mark_deleted
    assert await client.ours.delete_balancer(balancer_id, keeps_address=False) == WriteSuccess()


async def test_a_creation_that_takes_longer_than_the_deadline_is_busy(
    account: ThalassaAccount, tmp_path: Path
):
    client = Client(account, tmp_path, write_deadline_seconds=2)
    client.sim.build_seconds = 3600
    balancer_id = await client.create()
    found = await client.get(balancer_id)
    assert found.is_busy
    assert client.ours.build_ingress(await client.desire(), found) is None
    await client.close()


@pytest.mark.parametrize(("keys", "reads"), [("{}", 8), ("{creationPollInterval: 1}", 29)])
def test_a_creation_is_polled_at_the_interval_of_the_config_file(tmp_path: Path, keys: str, reads: int):
    async def count_reads() -> int:
        async with open_thalassa() as account:
            client = Client(account, tmp_path, write_deadline_seconds=30, first_poll_seconds=1)
            client.file.write_text(f"{client.file.read_text()}\nloadBalancer: {keys}")
            client.sim.build_seconds = 3600
            path = f"/v1/loadbalancers/{await client.create()}"
            await client.close()
            return sum(each.path == path for each in client.server.requests)

    assert run_virtually(count_reads(), has_servers=True) == reads


async def test_a_balancer_of_state_deleted_is_gone(client: Client):
    balancer_id = await client.create()
    client.balancers[0]["status"] = "deleted"
    assert await client.ours.get_balancer(balancer_id) == NotFound()
    assert await client.listing() == {}


async def test_a_prepared_balancer_is_released_without_ports_and_labels_and_its_groups_are_remnants(
    client: Client,
):
    balancer_id = await client.create()
    [made] = client.balancers
    made["labels"] = {"team": "edge"}
    found = await client.get(balancer_id)
    assert (found.owner, found.is_protected) == (None, False)
    change = client.ours.plan_adoption(await client.desire(), (), found, OWNER)
    assert isinstance(change, Change)
    assert isinstance(await client.ours.change_balancer(balancer_id, change), WriteSuccess)
    desired = await client.desire()
    await client.converge(balancer_id, desired, client.add_target())
    found = await client.get(balancer_id)
    assert (found.owner, found.is_protected) == (OWNER, True)
    while changes := client.ours.plan_release(found, keeps_address=False):
        assert isinstance(await client.ours.change_balancer(balancer_id, changes[0]), WriteSuccess)
        found = await client.get(balancer_id)
    [made] = client.balancers
    assert (made["labels"], client.listeners) == ({"team": "edge"}, [])
    assert [each.is_remnant for each in (await client.listing()).values()] == [True]


async def test_a_balancer_of_the_native_controller_is_taken_over_in_place(client: Client):
    balancer_id = await client.create()
    await client.converge(balancer_id, await client.desire())
    [made], [native_group] = client.balancers, client.groups
    made["labels"] = native_group["labels"] = {NATIVE_UID: OWNER.service_uid}
    found = await client.get(balancer_id)
    assert (found.native_uid, found.has_foreign_tags, found.owner) == (OWNER.service_uid, True, None)
    change = client.ours.plan_adoption(await client.desire(), (), found, OWNER)
    assert isinstance(change, Change)
    assert isinstance(await client.ours.change_balancer(balancer_id, change), WriteSuccess)
    await client.converge(balancer_id, await client.desire(), client.add_target())
    found = await client.get(balancer_id)
    assert (found.owner, found.has_foreign_tags, found.is_protected) == (OWNER, False, False)
    assert client.listeners[0]["targetGroup"] != native_group["identity"]
    assert isinstance(client.ours.plan_hand_back(found, OWNER.service_uid), InvalidField)


async def test_a_prepared_balancer_with_listeners_is_not_taken_over(client: Client):
    balancer_id = await client.create()
    await client.converge(balancer_id, await client.desire())
    client.balancers[0]["labels"] = {}
    change = client.ours.plan_adoption(await client.desire(), (), await client.get(balancer_id), OWNER)
    assert isinstance(change, InvalidField)


# ---- identity


async def test_a_listing_has_this_cluster_and_nothing_else(client: Client):
    balancer_id = await client.create()
    of_another = LABELS | {"talos-ccm/cluster": "other"}
    incomplete = [{name: LABELS[name] for name in LABELS if name != left_out} for left_out in LABELS]
    for labels in ({}, of_another, *incomplete):
        await client.ours.create_balancer(await client.desire(), (), OWNER)
        client.balancers[-1]["labels"] = dict(labels)
        found = await client.get(client.balancers[-1]["identity"])
        assert found.has_foreign_tags == (labels in incomplete)
    await client.converge(balancer_id, await client.desire())
    [group] = client.groups
    table = client.organisation.tables["loadbalancer-target-groups"]
    table["tg-1"] = group | {"identity": "tg-1", "labels": group["labels"] | of_another}
    client.server.cloud.ignores_filters = True
    assert list(await client.listing()) == [balancer_id]


async def test_parts_of_another_account_are_not_this_balancers(client: Client):
    """Accounts may share an organisation."""
    balancer_id = await client.create()
    await client.converge(balancer_id, await client.desire())
    [group] = client.groups
    client.organisation.tables["loadbalancer-target-groups"]["tg-1"] = group | {
        "identity": "tg-1",
        "labels": group["labels"] | {"talos-ccm/account": "other"},
    }
    found = await client.get(balancer_id)
    assert client.ours.plan_changes(await client.desire(), (), found) == ()
    left = (await client.listing())["target-group/tg-1"]
    assert (left.is_remnant, left.owner) == (True, msgspec.structs.replace(OWNER, account="other"))


@pytest.mark.parametrize("fault", ["service_error", "cut_off", "login_page", "duplicate", "unauthorized"])
@pytest.mark.parametrize("path", ["/v1/loadbalancers", "/v1/loadbalancer-target-groups"])
async def test_a_listing_is_complete_or_no_answer(client: Client, path: str, fault: str):
    balancer_id = await client.create()
    await client.converge(balancer_id, await client.desire(80, 443))
    await client.ours.create_balancer(await client.desire(), (), OWNER)
    client.server.add_fault(fault, path)
    assert isinstance(await client.ours.list_balancers(OWNER.cluster_uid, reads_parts=True), Unanswered)


async def lose_a_change(client: Client, balancer_id: str) -> None:
    client.server.add_fault("drop", method="POST", count=1)
    change = Change(method="POST", path="/v1/loadbalancer-target-groups", body=b"{}")
    assert isinstance(await client.ours.change_balancer(balancer_id, change), UnknownOutcome)


async def add_a_balancer(client: Client, balancer_id: str) -> None:
    balancer = client.organisation.tables["loadbalancers"][balancer_id]
    client.organisation.tables["loadbalancers"]["lb-2"] = balancer | {"identity": "lb-2"}


async def change_the_balancer(client: Client, balancer_id: str) -> None:
    client.organisation.tables["loadbalancers"][balancer_id]["status"] = "updating"


async def read_the_balancer(client: Client, balancer_id: str) -> None:
    await client.get(balancer_id)


async def replace_the_credential(client: Client, balancer_id: str) -> None:
    client.file.write_text(client.file.read_text() + "\n# another generation")


@pytest.mark.parametrize(
    "void",
    [lose_a_change, add_a_balancer, change_the_balancer, read_the_balancer, replace_the_credential],
)
async def test_a_listing_may_keep_target_groups_until_something_may_have_changed_them(
    client: Client, void: Callable[[Client, str], Awaitable[None]]
):
    balancer_id = await client.create()
    await client.converge(balancer_id, await client.desire(), client.add_target())
    before = await client.listing()
    requests = len(client.server.requests)
    assert await client.listing(reads_parts=False) == before
    assert [each.path for each in client.server.requests[requests:]] == ["/v1/loadbalancers"]
    client.groups[0]["_attachments"] = []  # by another client
    assert await client.listing(reads_parts=False) == before
    await void(client, balancer_id)
    after = await client.listing(reads_parts=False)
    assert after[balancer_id].targets == ()
    client.groups[0]["labels"] |= {"talos-ccm/service-uid": "of another Service"}
    assert any(each.is_remnant for each in (await client.listing()).values())


async def test_a_listing_is_by_one_credential(client: Client, account: ThalassaAccount):
    await client.create()

    def replace_secret(request: SimRequest) -> None:
        account.replace_secret("another")
        client.file.write_text(client.file.read_text().replace(SECRET, "another"))
        client.server.after_answer = lambda request, answer: None

    client.server.after_answer = lambda request, answer: replace_secret(request)
    assert isinstance(await client.ours.list_balancers(OWNER.cluster_uid, reads_parts=True), Unanswered)
    assert len(await client.listing()) == 1


@pytest.mark.parametrize("field", ["targetGroup", "allowedSources"])
async def test_listeners_without_one_of_their_fields_are_listed(client: Client, field: str):
    balancer_id = await client.create()
    desired = await client.desire(acl_allowed_sources=ACL)
    await client.converge(balancer_id, desired)
    client.sim.hidden_fields = (field,)
    assert client.ours.plan_changes(desired, (), await client.get(balancer_id)) == ()


async def test_an_unreadable_acl_keeps_a_restriction_that_the_load_balancer_does_not_show(client: Client):
    balancer_id = await client.create()
    await client.converge(balancer_id, await client.desire(acl_allowed_sources=ACL))
    client.sim.hidden_fields = ("allowedSources",)
    parsed = await client.parse(acl_allowed_sources="office", idle_connection_timeout="60")
    await client.converge(balancer_id, parsed.desired)
    [listener] = client.listeners
    assert (listener["allowedSources"], listener["connectionIdleTimeout"]) == ([ACL], 60)


async def test_an_attachment_without_a_target_is_no_answer(client: Client):
    """A target that is not shown would be replaced as if it were not there."""
    balancer_id = await client.create()
    await client.converge(balancer_id, await client.desire(), client.add_target())
    client.groups[0]["_attachments"][0]["virtualMachineInstance"] = None
    assert isinstance(await client.ours.get_balancer(balancer_id), Unanswered)


async def test_an_object_of_another_organisation_is_no_answer(client: Client):
    balancer_id = await client.create()
    client.balancers[0]["organisation"] = {"identity": "o-0", "slug": "other"}
    assert isinstance(await client.ours.get_balancer(balancer_id), Unanswered)


# ---- the three results of a write

Write = Callable[[Client, str], Awaitable[WriteResult | NotFound]]


async def create_another(client: Client, balancer_id: str) -> WriteResult:
    return await client.ours.create_balancer(await client.desire(), (), OWNER)


async def change(client: Client, balancer_id: str) -> WriteResult:
    desired = await client.desire()
    first = client.ours.plan_changes(desired, (), await client.get(balancer_id))[0]
    return await client.ours.change_balancer(balancer_id, first)


async def delete(client: Client, balancer_id: str) -> WriteResult | NotFound:
    return await client.ours.delete_balancer(balancer_id, keeps_address=False)


WRITES: tuple[Write, ...] = (create_another, change, delete)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("effect", ["now", "never"])
@pytest.mark.parametrize(
    "fault",
    [
        "service_error",
        "proxy_not_found",
        "proxy_bad_gateway",
        "login_page",
        "echo",
        "redirect",
        "cut_off",
        "drop",
    ],
)
async def test_an_answer_that_is_not_the_apis_proves_nothing_and_nothing_is_sent_again(
    client: Client, write: Write, effect: str, fault: str
):
    balancer_id = await client.create()
    before, sent = (len(client.balancers), len(client.groups)), len(client.writes())
    client.server.add_fault(fault, method="POST|PUT|DELETE", effect=effect)
    result = await write(client, balancer_id)
    assert isinstance(result, UnknownOutcome), result
    assert SECRET not in result.reason
    assert len(client.writes()) == sent + 1
    client.sim.advance()
    assert ((len(client.balancers), len(client.groups)) == before) == (effect == "never")


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("unauthorized", "unauthorized"),
        ("forbidden", "unauthorized"),
        ("quota", "limit"),
        ("conflict", "busy"),
        ("rate_limited", "rate_limited"),
    ],
)
async def test_an_error_in_the_apis_form_is_a_rejection(client: Client, write: Write, fault: str, kind: str):
    balancer_id = await client.create()
    client.server.add_fault(fault, method="POST|PUT|DELETE", effect="never")
    result = await write(client, balancer_id)
    assert isinstance(result, WriteRejection), result
    assert result.kind == kind
    assert result.reason


async def test_a_quota_and_a_protection_are_rejections_with_the_text_of_the_cloud(client: Client):
    balancer_id = await client.create()
    client.sim.quota = 1
    result = await create_another(client, balancer_id)
    assert isinstance(result, WriteRejection)
    assert (result.kind, result.reason) == ("limit", "HTTP 403: quota exceeded: load balancers")
    client.balancers[0]["deleteProtection"] = True
    assert (await client.get(balancer_id)).is_protected
    refused = await client.ours.delete_balancer(balancer_id, keeps_address=False)
    assert isinstance(refused, WriteRejection)
    assert "delete protection" in refused.reason


@pytest.mark.parametrize("balancer_id", ["", "a/b", "target-group/", "../vpcs"])
async def test_a_text_that_is_no_identity_is_never_sent(client: Client, balancer_id: str):
    change = Change(method="DELETE", path="/v1/loadbalancers")
    assert isinstance(await client.ours.change_balancer(balancer_id, change), WriteRejection)
    assert isinstance(await client.ours.delete_balancer(balancer_id, keeps_address=False), WriteRejection)
    assert isinstance(await client.ours.get_balancer(balancer_id), Unanswered)
    assert client.server.requests == []


async def test_an_access_token_that_ended_is_renewed_after_a_rejected_write(
    account: ThalassaAccount, tmp_path: Path
):
    account.server.cloud.clients["client", SECRET] = account.organisation
    client = Client(account, tmp_path)
    text = client.file.read_text().replace("personalAccessToken", "clientID: client, clientSecret")
    client.file.write_text(text)
    desired = await client.desire()
    account.server.cloud.access_tokens.clear()
    rejected = await client.ours.create_balancer(desired, (), OWNER)
    assert isinstance(rejected, WriteRejection)
    assert rejected.kind == "unauthorized"
    assert isinstance(await client.ours.create_balancer(desired, (), OWNER), WriteSuccess)
    await client.close()
