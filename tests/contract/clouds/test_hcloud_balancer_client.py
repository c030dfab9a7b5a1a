"""Our client of load balancers of Hetzner Cloud writes once, and takes nothing for a success that is none."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from libs.clouds.account_session import AccountOptions
from libs.clouds.balancers import (
    Balancer,
    BalancerRequest,
    Balancers,
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
from libs.clouds.hcloud.balancers.annotations import Annotations
from libs.clouds.hcloud.balancers.desired import BalancerOptions, DesiredBalancer
from libs.clouds.hcloud.balancers.hcloud_balancers import HcloudBalancers
from libs.clouds.hcloud.balancers.plan import Change
from libs.clouds.hcloud.hcloud_api import HcloudApi
from libs.clouds.hcloud.hcloud_instances import HcloudInstances
from libs.clouds.instances import NotFound, Unanswered
from libs.testbed.child_process import HANG_SECONDS
from tests.clocks import run_virtually
from tests.contract.clouds.accounts import SECRET, HcloudAccount, open_hcloud

OWNER = Owner(
    cluster_uid="5c1a7b4e-0000-4000-8000-000000000001",
    service_uid="5c1a7b4e-0000-4000-8000-000000000002",
    account="prod",
)
LABELS = {
    "talos-ccm/cluster": OWNER.cluster_uid,
    "talos-ccm/service-uid": OWNER.service_uid,
    "talos-ccm/account": "prod",
}
PREFIX = "load-balancer.hetzner.cloud/"
DEADLINE = 10.0  # of a write in virtual time; of a single request it is 15 s


class Client:
    """Our client of a project with one network, and what its tests do again and again."""

    def __init__(self, opened: HcloudAccount, **options: Any) -> None:
        self.server, self.project = opened.server, opened.project
        self.network = self.project.add_network()
        self.api = HcloudApi(
            AccountOptions(credential=SECRET, user_agent="talos-ccm/test", endpoint=opened.server.endpoint)
        )
        balancer_options = BalancerOptions(network=self.network, defaults=Annotations(location="fsn1"))
        defaults: dict[str, Any] = {
            "requests_per_minute": 10_000,
            "write_deadline_seconds": HANG_SECONDS,
            "first_poll_seconds": 0.001,  # actions of the simulated cloud end at once, if nothing else is set
        }
        self.ours: HcloudBalancers = HcloudBalancers(self.api, balancer_options, **(defaults | options))
        self._conforms: Balancers[DesiredBalancer, Change] = self.ours

    async def close(self) -> None:
        await self.ours.close()
        await self.api.close()

    @classmethod
    @asynccontextmanager
    async def open(cls, account: HcloudAccount, **options: Any) -> AsyncIterator["Client"]:
        client = cls(account, **options)
        try:
            yield client
        finally:
            await client.close()

    def add_target(self, **details: Any) -> Target:
        name = f"server-{len(self.project.tables['servers'])}"
        host = 10 + len(self.project.tables["servers"])
        place = {"ipv4": f"192.0.2.{host}", "private": [(self.network, f"10.0.1.{host}")]}
        return Target(instance_id=str(self.project.add_server(name, **(place | details))))

    def count_requests(self, path: str) -> int:
        return sum(each.path.endswith(path) for each in self.server.requests)

    def parse(self, ports: tuple[int, ...] = (80,), **annotations: str) -> ParsedRequest[DesiredBalancer]:
        request = BalancerRequest(
            namespace="default",
            name="web",
            uid=OWNER.service_uid,
            annotations={PREFIX + name.replace("_", "-"): text for name, text in annotations.items()},
            ports=tuple(
                Port(name=f"port-{port}", protocol="TCP", port=port, node_port=30000 + port) for port in ports
            ),
        )
        return self.ours.read_request(request)

    def desired(self, ports: tuple[int, ...] = (80,), **annotations: str) -> DesiredBalancer:
        parsed = self.parse(ports, **annotations)
        assert parsed.invalid == ()
        return parsed.desired

    async def create(self, *targets: Target, **annotations: str) -> str:
        result = await self.ours.create_balancer(self.desired((80,), **annotations), targets, OWNER)
        assert isinstance(result, WriteSuccess), result
        return result.balancer_id

    async def get(self, balancer_id: str) -> Balancer:
        found = await self.ours.get_balancer(balancer_id)
        assert isinstance(found, Balancer), found
        return found

    async def converge(self, balancer_id: str, desired: DesiredBalancer, *targets: Target) -> list[str]:
        """Make changes until nothing differs; return their actions."""
        actions: list[str] = []
        while changes := self.ours.plan_changes(desired, targets, await self.get(balancer_id)):
            assert len(actions) < 50
            result = await self.ours.change_balancer(balancer_id, changes[0])
            assert isinstance(result, WriteSuccess), (changes[0], result)
            actions.append(changes[0].action)
        return actions

    def writes(self) -> list[tuple[str, str]]:
        return [(each.method, each.path) for each in self.server.requests if each.method != "GET"]

    def balancers(self) -> list[dict[str, Any]]:
        self.project.actions.settle()
        return list(self.project.tables["load_balancers"].values())


@pytest.fixture
async def account() -> AsyncIterator[HcloudAccount]:
    async with open_hcloud() as opened:
        yield opened


@pytest.fixture
async def client(account: HcloudAccount) -> AsyncIterator[Client]:
    async with Client.open(account) as opened:
        yield opened


def run_virtual_client(use: Callable[[Client], Awaitable[None]], **options: Any) -> None:
    """Use a client and an account in virtual time, in which no deadline passes while one of them works."""

    async def run() -> None:
        async with (
            open_hcloud(now=asyncio.get_running_loop().time) as account,
            Client.open(account, **({"write_deadline_seconds": DEADLINE} | options)) as client,
        ):
            await use(client)

    run_virtually(run(), has_servers=True)


# ---- reads and writes without faults


async def test_a_balancer_has_its_tags_ports_and_targets_from_the_create_on(client: Client):
    targets = (client.add_target(), client.add_target())
    balancer_id = await client.create(*targets, name="edge")
    [method] = [each for each, _ in client.writes()]
    [stored] = client.balancers()
    assert method == "POST"
    assert stored["labels"] == LABELS
    balancer = await client.get(balancer_id)
    assert (balancer.name, balancer.owner, balancer.targets) == ("edge", OWNER, targets)
    assert not balancer.has_foreign_tags
    assert client.ours.plan_changes(client.desired(name="edge"), targets, balancer) == ()
    ingress = client.ours.build_ingress(client.desired(), balancer)
    assert ingress is not None
    assert len(ingress) == 3  # IPv4, IPv6, and the address in the network


WORLDS: tuple[dict[str, str], ...] = (
    {},
    {"type": "lb21", "algorithm_type": "least_connections", "name": "edge", "ipv4_rdns": "edge.example"},
    {"use_private_ip": "true"},
    {"use_private_ip": "true", "disable_public_network": "true"},
    {"use_private_ip": "true", "disable_public_network": "true", "private_ipv4": "10.0.1.77"},
    {"private_subnet_ip_range": "10.0.1.0/24", "disable_public_network": "false"},
    {"protocol": "http", "http_sticky_sessions": "true", "http_timeout_idle": "45s"},
    {
        "protocol": "http",
        "health_check_http_path": "/live",
        "health_check_http_domain": "a.example",
        "health_check_retries": "5",
        "http_status_codes": "204",
    },
    {"uses_proxyprotocol": "true", "health_check_interval": "5s", "disable_public_network": "false"},
)


PAIRS = [(before, WORLDS[(at + step) % len(WORLDS)]) for step in (1, 4) for at, before in enumerate(WORLDS)]


@pytest.mark.parametrize(("before", "after"), PAIRS)
async def test_the_api_accepts_every_change_from_one_balancer_to_another(
    client: Client, before: dict[str, str], after: dict[str, str]
):
    targets = [client.add_target() for _ in range(3)]
    if before.get("disable_public_network") == "true" and after.get("disable_public_network") != "true":
        after = {**after, "disable_public_network": "false"}
    balancer_id = await client.create(*targets[:2], **before)
    await client.converge(balancer_id, client.desired((80,), **before), *targets[:2])
    await client.converge(balancer_id, client.desired((443, 8080), **after), *targets[1:])
    balancer = await client.get(balancer_id)
    assert set(balancer.targets) == set(targets[1:])
    [stored] = client.balancers()
    assert [each["listen_port"] for each in stored["services"]] == [443, 8080]
    assert stored["public_net"]["enabled"] == (after.get("disable_public_network") != "true")
    assert stored["labels"] == LABELS


async def test_a_release_leaves_the_balancer_without_our_targets_ports_and_tags(client: Client):
    balancer_id = await client.create(client.add_target())
    [stored] = client.balancers()
    stored["labels"]["team"] = "edge"
    while changes := client.ours.plan_release(await client.get(balancer_id), keeps_address=False):
        assert await client.ours.change_balancer(balancer_id, changes[0]) == WriteSuccess()
    [stored] = client.balancers()
    assert (stored["targets"], stored["services"], stored["labels"]) == ([], [], {"team": "edge"})
    assert await client.ours.list_balancers(OWNER.cluster_uid, reads_parts=True) == ()


async def test_a_deletion_succeeds_once_and_is_not_found_afterwards(client: Client):
    balancer_id = await client.create()
    assert await client.ours.delete_balancer(balancer_id, keeps_address=False) == WriteSuccess()
    assert await client.ours.delete_balancer(balancer_id, keeps_address=False) == NotFound()
    assert await client.ours.get_balancer(balancer_id) == NotFound()


async def test_a_listing_has_all_pages_of_this_cluster_and_nothing_else(client: Client):
    for number in range(60):
        client.project.add_balancer(f"ours-{number}", labels=LABELS)
    client.project.add_balancer("other", labels={**LABELS, "talos-ccm/cluster": "other"})
    client.project.add_balancer("half", labels={"talos-ccm/cluster": OWNER.cluster_uid})
    client.project.add_balancer("native", labels={"hcloud-ccm/service-uid": "5"})
    for ignores_filters in (False, True):
        client.server.cloud.ignores_filters = ignores_filters
        listed = await client.ours.list_balancers(OWNER.cluster_uid, reads_parts=True)
        assert isinstance(listed, tuple)
        assert sorted(each.name for each in listed) == sorted(f"ours-{number}" for number in range(60))


@pytest.mark.parametrize(
    "fault", ["half_page", "duplicate", "service_error", "lying_not_found", "proxy_not_found"]
)
async def test_a_listing_is_complete_or_no_answer(client: Client, fault: str):
    for number in range(60):
        client.project.add_balancer(f"ours-{number}", labels=LABELS)
    client.server.add_fault(fault, after=1, count=1)
    assert isinstance(await client.ours.list_balancers(OWNER.cluster_uid, reads_parts=True), Unanswered)


async def test_certificates_are_found_by_name_and_asked_for_once(client: Client):
    number = client.project.add_certificate("www")
    names = {"protocol": "https", "http_certificates": "www"}
    parsed = client.parse((443,), **names)
    unresolved = await client.ours.create_balancer(parsed.desired, (), OWNER)
    assert isinstance(unresolved, WriteRejection)
    await client.ours.resolve_names(parsed)
    resolved = await client.ours.resolve_names(parsed)
    assert client.count_requests("/certificates") == 1
    assert isinstance(resolved, ParsedRequest)
    result = await client.ours.create_balancer(resolved.desired, (), OWNER)
    assert isinstance(result, WriteSuccess)
    [stored] = client.balancers()
    assert list(stored["services"][0]["http"]["certificates"]) == [number]


async def test_a_certificate_that_replaces_another_one_of_its_name_is_used(account: HcloudAccount):
    async with Client.open(account, name_age_seconds=0.0) as client:
        client.project.add_certificate("www")
        parsed = client.parse((443,), protocol="https", http_certificates="www")
        await client.ours.resolve_names(parsed)
        for certificate in client.project.tables["certificates"].values():
            certificate["name"] = "former"
        number = client.project.add_certificate("www")
        resolved = await client.ours.resolve_names(parsed)
        assert isinstance(resolved, ParsedRequest)
        [service] = resolved.desired.services
        assert service.http is not None
        assert service.http.certificates == (number,)


async def test_a_managed_certificate_is_created_once_and_used(client: Client):
    annotations = {"certificate_type": "managed", "http_managed_certificate_domains": "example.com"}
    parsed = client.parse((443,), protocol="https", **annotations)
    needing = await client.ours.resolve_names(parsed)
    assert isinstance(needing, ParsedRequest)
    assert isinstance(needing.needed, Change)
    assert isinstance(await client.ours.create_balancer(needing.desired, (), OWNER), WriteRejection)
    assert await client.ours.change_balancer("", needing.needed) == WriteSuccess()
    again = await client.ours.change_balancer("", needing.needed)
    assert isinstance(again, WriteRejection)
    client.project.actions.settle()
    resolved = await client.ours.resolve_names(parsed)
    assert isinstance(resolved, ParsedRequest)
    assert resolved.needed is None
    assert isinstance(await client.ours.create_balancer(resolved.desired, (), OWNER), WriteSuccess)
    [certificate] = client.project.tables["certificates"].values()
    assert (certificate["type"], list(certificate["domain_names"])) == ("managed", ["example.com"])
    assert certificate["labels"] == {"hcloud-ccm/service-uid": OWNER.service_uid}
    [stored] = client.balancers()
    assert list(stored["services"][0]["http"]["certificates"]) == [certificate["id"]]
    other = client.parse(
        (443,), protocol="https", **annotations | {"http_managed_certificate_domains": "example.org"}
    )
    rejected = await client.ours.resolve_names(other)
    assert isinstance(rejected, ParsedRequest)
    assert [type(each) for each in rejected.invalid] == [InvalidField]


@pytest.mark.parametrize("error", [{"code": "dns_zone_not_found", "message": "none"}, None])
async def test_a_certificate_that_the_cloud_could_not_issue_is_an_invalid_field(
    client: Client, error: dict[str, str] | None
):
    annotations = {"certificate_type": "managed", "http_managed_certificate_domains": "example.com"}
    parsed = client.parse((443,), protocol="https", **annotations)
    needing = await client.ours.resolve_names(parsed)
    assert isinstance(needing, ParsedRequest)
    assert isinstance(needing.needed, Change)
    await client.ours.change_balancer("", needing.needed)
    client.project.actions.settle()
    [certificate] = client.project.tables["certificates"].values()
    certificate["status"] |= {"issuance": "failed", "error": error}
    rejected = await client.ours.resolve_names(parsed)
    assert isinstance(rejected, ParsedRequest)
    [field] = rejected.invalid
    assert field.field == f"{PREFIX}http-managed-certificate-domains"
    assert ("dns_zone_not_found" if error else "without a code") in field.reason
    assert not rejected.desired.may_open_ports


async def test_a_network_is_found_by_name_and_an_unknown_one_is_an_invalid_field(account: HcloudAccount):
    for name, is_known in (("net", True), ("other", False)):
        client = Client(account)
        client.project.tables["networks"][client.network]["name"] = "net"
        options = BalancerOptions(network=name, defaults=Annotations(location="fsn1"))
        client.ours = HcloudBalancers(client.api, options)
        parsed = client.parse(use_private_ip="true")
        assert isinstance(await client.ours.create_balancer(parsed.desired, (), OWNER), WriteRejection)
        resolved = await client.ours.resolve_names(parsed)
        assert isinstance(resolved, ParsedRequest)
        assert (resolved.invalid == ()) is is_known
        assert resolved.desired.network == (client.network if is_known else None)
        del client.project.tables["networks"][client.network]
        await client.close()


async def test_no_balancer_leaves_its_network_for_one_that_the_project_does_not_have(client: Client):
    target = client.add_target()
    balancer_id = await client.create(target, use_private_ip="true")
    await client.ours.close()
    options = BalancerOptions(network=client.network + 1, defaults=Annotations(location="fsn1"))
    client.ours = HcloudBalancers(client.api, options)
    resolved = await client.ours.resolve_names(client.parse(use_private_ip="true"))
    assert isinstance(resolved, ParsedRequest)
    assert [each.field for each in resolved.invalid] == ["HCLOUD_NETWORK"]
    assert client.ours.plan_changes(resolved.desired, (target,), await client.get(balancer_id)) == ()
    client.server.add_fault("service_error")
    assert isinstance(await client.ours.resolve_names(client.parse()), Unanswered)


async def test_a_network_that_exists_is_requested_once(client: Client):
    for _ in range(2):
        resolved = await client.ours.resolve_names(client.parse())
        assert isinstance(resolved, ParsedRequest)
        assert resolved.invalid == ()
    assert client.count_requests(f"/networks/{client.network}") == 1


async def test_an_unknown_certificate_is_an_invalid_field_and_an_outage_no_answer(client: Client):
    parsed = client.parse((443,), protocol="https", http_certificates="www,api,shop")
    resolved = await client.ours.resolve_names(parsed)
    assert isinstance(resolved, ParsedRequest)
    assert [type(each) for each in resolved.invalid] == [InvalidField]
    assert client.count_requests("/certificates") == 1
    client.server.add_fault("service_error")
    assert isinstance(await client.ours.resolve_names(parsed), Unanswered)


# ---- the three results of a write

Write = Callable[[Client, str], Awaitable[WriteResult | NotFound]]


async def create_another(client: Client, balancer_id: str) -> WriteResult:
    return await client.ours.create_balancer(client.desired(name="another"), (), OWNER)


async def change(client: Client, balancer_id: str) -> WriteResult:
    return await client.ours.change_balancer(
        balancer_id, Change("change_algorithm", b'{"type":"least_connections"}')
    )


async def rename(client: Client, balancer_id: str) -> WriteResult:
    return await client.ours.change_balancer(balancer_id, Change("update", b'{"name":"new"}'))


async def delete(client: Client, balancer_id: str) -> WriteResult | NotFound:
    return await client.ours.delete_balancer(balancer_id, keeps_address=False)


WRITES: tuple[Write, ...] = (create_another, change, rename, delete)


def describe(client: Client) -> list[tuple[str, str]]:
    return [(each["name"], each["algorithm"]["type"]) for each in client.balancers()]


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
        "huge",
        "cut_off",
        "drop",
    ],
)
async def test_an_answer_that_is_not_the_apis_proves_nothing_and_nothing_is_sent_again(
    client: Client, write: Write, effect: str, fault: str
):
    balancer_id = await client.create()
    before, sent = describe(client), len(client.writes())
    client.server.add_fault(fault, method="POST|PUT|DELETE", effect=effect)
    result = await write(client, balancer_id)
    assert isinstance(result, UnknownOutcome), result
    assert SECRET not in result.reason
    assert len(client.writes()) == sent + 1
    assert (describe(client) == before) == (effect == "never")


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("effect", ["now", "never", "later"])
def test_a_write_without_an_answer_by_its_deadline_is_unknown(write: Write, effect: str):
    async def lose_answer(client: Client) -> None:
        balancer_id = await client.create()
        before, sent = describe(client), len(client.writes())
        client.server.add_fault("hang", method="POST|PUT|DELETE", effect=effect, count=1)
        clock = asyncio.get_running_loop().time
        began = clock()
        result = await write(client, balancer_id)
        assert isinstance(result, UnknownOutcome), result
        assert clock() - began == pytest.approx(DEADLINE, abs=1)
        assert SECRET not in result.reason
        assert len(client.writes()) == sent + 1
        assert (describe(client) != before) == (effect == "now")
        client.server.release()
        assert (describe(client) != before) == (effect in {"now", "later"})

    run_virtual_client(lose_answer)


async def set_busy(client: Client, balancer_id: str) -> None:
    client.project.actions.seconds = 60
    client.project.start_action("change_type", "load_balancers", client.balancers()[0], lambda: None)


async def set_locked(client: Client, balancer_id: str) -> None:
    client.project.busy_code = "locked"
    await set_busy(client, balancer_id)


async def set_protected(client: Client, balancer_id: str) -> None:
    client.balancers()[0]["protection"]["delete"] = True


async def set_full(client: Client, balancer_id: str) -> None:
    client.project.quotas["load_balancers"] = 1


async def set_read_only(client: Client, balancer_id: str) -> None:
    client.server.cloud.read_only.add(SECRET)


async def set_revoked(client: Client, balancer_id: str) -> None:
    del client.server.cloud.tokens[SECRET]


async def use_the_name(client: Client, balancer_id: str) -> None:
    client.project.add_balancer("another")


async def remove_it(client: Client, balancer_id: str) -> None:
    client.project.remove("load_balancers", int(balancer_id))


def name_code(result: WriteRejection) -> str:
    """The code of the API with the fields that it names, without its message."""
    return result.reason.partition(":")[0]


@pytest.mark.parametrize(
    ("write", "prepare", "kind", "reason"),
    [
        (change, set_busy, "busy", "conflict"),
        (rename, set_busy, "busy", "conflict"),
        (delete, set_locked, "busy", "locked"),
        (delete, set_protected, "in_use", "protected"),
        (create_another, set_full, "limit", "resource_limit_exceeded"),
        (create_another, use_the_name, "invalid", "uniqueness_error (name)"),
        (create_another, set_read_only, "unauthorized", "forbidden"),
        (change, set_revoked, "unauthorized", "unauthorized"),
        (change, remove_it, "invalid", "not_found"),
    ],
)
async def test_an_error_in_the_apis_form_is_a_rejection(
    client: Client,
    write: Write,
    prepare: Callable[[Client, str], Awaitable[None]],
    kind: str,
    reason: str,
):
    balancer_id = await client.create()
    await prepare(client, balancer_id)
    before = describe(client)
    result = await write(client, balancer_id)
    assert isinstance(result, WriteRejection)
    assert (result.kind, name_code(result)) == (kind, reason)
    assert describe(client) == before


async def test_an_invalid_value_is_rejected_with_its_field(client: Client):
    balancer_id = await client.create()
    result = await client.ours.change_balancer(
        balancer_id, Change("change_type", b'{"load_balancer_type":"lb99"}')
    )
    assert isinstance(result, WriteRejection)
    assert (result.kind, result.reason) == ("invalid", "invalid_input (load_balancer_type): unknown type")


@pytest.mark.parametrize("balancer_id", ["", "0", "x", "1/actions/change_type", "../servers/1"])
async def test_a_text_that_is_no_id_is_never_sent(client: Client, balancer_id: str):
    assert isinstance(await rename(client, balancer_id), WriteRejection)
    assert isinstance(await delete(client, balancer_id), WriteRejection)
    assert isinstance(await client.ours.get_balancer(balancer_id), Unanswered)
    assert client.server.requests == []


async def test_a_requested_pause_holds_reads_and_writes_of_the_account_back(client: Client):
    balancer_id = await client.create()
    client.server.add_fault("rate_limited", count=1)
    limited = await rename(client, balancer_id)
    assert isinstance(limited, WriteRejection)
    assert (limited.kind, limited.retry_after_seconds) == ("rate_limited", 90)
    sent = len(client.server.requests)
    held = await rename(client, balancer_id)
    assert isinstance(held, WriteRejection)
    assert held.kind == "held_back"
    instance = await HcloudInstances(client.api).get_instance("5")
    assert isinstance(instance, Unanswered)
    assert instance.outcome == "held_back"
    assert len(client.server.requests) == sent


async def test_writes_do_not_count_among_the_requests_for_instances(account: HcloudAccount):
    client = Client(account, requests_per_minute=120)
    balancer_id = await client.create()
    async with asyncio.timeout(40):  # among them, the 21st of a minute would wait for its end
        for _ in range(12):  # 20 a minute are allowed for instances
            await rename(client, balancer_id)
            assert not isinstance(await client.ours.get_balancer(balancer_id), Unanswered)
        assert await HcloudInstances(client.api).get_instance("5") == NotFound()
    await client.close()


async def test_a_write_beyond_the_number_per_minute_is_not_sent_but_a_deletion_is(account: HcloudAccount):
    client = Client(account, requests_per_minute=4, write_deadline_seconds=40)
    for _ in range(2):  # the other two are for reads
        await client.ours.get_balancer("5")
    result = await rename(client, "5")
    assert isinstance(result, WriteRejection)
    assert result.kind == "held_back"
    assert result.retry_after_seconds is not None
    assert client.writes() == []
    assert await delete(client, "5") == NotFound()
    await client.close()


async def test_a_write_that_begins_after_its_deadline_is_not_sent(account: HcloudAccount):
    client = Client(account, write_deadline_seconds=-1)
    await client.ours.get_balancer("5")  # opens the connection, on which a request is sent at once
    result = await rename(client, "5")
    assert isinstance(result, WriteRejection)
    assert result.kind == "held_back"
    assert client.writes() == []
    await client.close()


async def test_a_missing_credential_and_a_missing_server_send_nothing(account: HcloudAccount, tmp_path: Path):
    for credential, endpoint, kind in (
        (tmp_path / "none", account.server.endpoint, "unauthorized"),
        (SECRET, "http://127.0.0.1:1/v1", "held_back"),
    ):
        api = HcloudApi(AccountOptions(credential=credential, user_agent="test", endpoint=endpoint))
        ours = HcloudBalancers(api, BalancerOptions())
        result = await ours.delete_balancer("5", keeps_address=False)
        assert isinstance(result, WriteRejection)
        assert result.kind == kind
        await ours.close()
        await api.close()
    assert account.server.requests == []


# ---- targets at the creation


async def test_a_target_that_the_cloud_rejects_does_not_prevent_the_creation(client: Client):
    target, without_ipv4 = client.add_target(), client.add_target(ipv4=None, ipv6="2001:db8::/64")
    balancer_id = await client.create(target, without_ipv4)
    created = [
        each for each in client.project.journal if each.command == "create" and each.kind == "load_balancers"
    ]
    assert len(created) == 1
    desired, targets = client.desired(), (target, without_ipv4)
    rejected = set[Change]()
    while pending := [
        each
        for each in client.ours.plan_changes(desired, targets, await client.get(balancer_id))
        if each not in rejected
    ]:
        result = await client.ours.change_balancer(balancer_id, pending[0])
        if isinstance(result, WriteRejection):
            rejection = (name_code(result), result.target)
            assert rejection == ("resolve_cloud_public_targets_error", without_ipv4)
            rejected.add(pending[0])
    assert (await client.get(balancer_id)).targets == (target,)
    assert len(rejected) == 1


@pytest.mark.parametrize(
    ("is_private", "code"), [("false", "invalid_input"), ("true", "resolve_cloud_private_targets_error")]
)
async def test_a_server_that_is_gone_is_the_target_of_the_rejection(
    client: Client, is_private: str, code: str
):
    gone = client.add_target()
    client.project.remove("servers", int(gone.instance_id))
    balancer_id = await client.create(gone, use_private_ip=is_private)
    assert client.writes().count(("POST", "/load_balancers")) == 2, "the second one without targets"
    desired = client.desired(use_private_ip=is_private)
    (change,) = client.ours.plan_changes(desired, (gone,), await client.get(balancer_id))
    result = await client.ours.change_balancer(balancer_id, change)
    assert isinstance(result, WriteRejection)
    assert (name_code(result), result.target) == (code, gone)


async def test_a_network_that_the_balancer_lacks_is_no_fault_of_the_target(client: Client):
    balancer_id, target = await client.create(), client.add_target()
    client.project.tables["load_balancers"][int(balancer_id)]["private_net"].clear()
    body = f'{{"type":"server","server":{{"id":{target.instance_id}}},"use_private_ip":true}}'
    result = await client.ours.change_balancer(balancer_id, Change("add_target", body.encode()))
    assert isinstance(result, WriteRejection)
    assert (name_code(result), result.target) == ("load_balancer_not_attached_to_network", None)


async def test_a_creation_that_is_rejected_for_another_reason_is_sent_once(client: Client):
    client.project.quotas["load_balancers"] = 0
    result = await client.ours.create_balancer(client.desired(), (client.add_target(),), OWNER)
    assert isinstance(result, WriteRejection)
    assert result.kind == "limit"
    assert len(client.writes()) == 1


# ---- actions


async def test_an_action_that_fails_is_unknown(client: Client):
    balancer_id = await client.create()
    client.project.actions.fail_next("change_algorithm")
    result = await change(client, balancer_id)
    assert result == UnknownOutcome(reason="change_algorithm failed: action_failed")


def test_an_action_that_does_not_end_by_the_deadline_is_unknown():
    async def outwait(client: Client) -> None:
        balancer_id = await client.create()
        client.project.actions.seconds = 2 * DEADLINE
        clock = asyncio.get_running_loop().time
        began = clock()
        assert isinstance(await change(client, balancer_id), UnknownOutcome)
        assert clock() - began == pytest.approx(DEADLINE, abs=5)

    run_virtual_client(outwait)


@pytest.mark.parametrize("fault", ["service_error", "lying_not_found", "wrong_id", "cut_off"])
async def test_a_lost_answer_about_an_action_is_asked_for_again(client: Client, fault: str):
    balancer_id = await client.create()
    client.project.actions.seconds = 0.1
    client.server.add_fault(fault, "/actions", count=1)
    assert await change(client, balancer_id) == WriteSuccess()


def test_different_balancers_change_at_the_same_time():
    async def change_all(client: Client) -> None:
        ids = [str(client.project.add_balancer(f"web-{number}", labels=LABELS)) for number in range(8)]
        client.project.actions.seconds = 5
        clock = asyncio.get_running_loop().time
        began = clock()
        assert set(await asyncio.gather(*(change(client, each) for each in ids))) == {WriteSuccess()}
        assert clock() - began < 10  # one after the other, 40 s

    run_virtual_client(change_all)


def test_one_request_asks_for_the_ends_of_many_actions():
    async def create_all(client: Client) -> None:
        client.project.actions.seconds = 0.5
        names = [f"web-{number}" for number in range(100)]
        results = await asyncio.gather(
            *(client.ours.create_balancer(client.desired(name=name), (), OWNER) for name in names)
        )
        assert {type(each) for each in results} == {WriteSuccess}
        ids = {each.balancer_id for each in results if isinstance(each, WriteSuccess)}
        assert len(ids) == len(names)
        polls = [each for each in client.server.requests if each.path == "/actions"]
        assert len(polls) < len(names)

    run_virtual_client(create_all, requests_per_minute=480, first_poll_seconds=0.4)


def test_the_requests_for_the_end_of_an_action_become_few():
    async def converge(client: Client) -> None:
        balancer_id = await client.create()
        client.project.actions.seconds = 0.2
        targets = [client.add_target() for _ in range(20)]
        await client.converge(balancer_id, client.desired(), *targets)
        polls = [each for each in client.server.requests if each.path == "/actions"]
        assert len(polls[5:]) <= 2 * len(targets)

    run_virtual_client(converge)
