"""The simulated Thalassa Cloud API as two clients see it: the cloud's own in Go, and ours."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

from libs.clouds.instances import Instance, NotFound
from libs.testbed.clouds.go_clients import ThalassaBalancer, ThalassaQuery, query_thalassa
from libs.testbed.clouds.thalassa.server import SimThalassaServer
from tests.contract.clouds.accounts import SECRET, ThalassaAccount, open_client, open_thalassa


class Case(NamedTuple):
    account: ThalassaAccount
    vpc: str
    web_1: str
    off: str
    removed: str

    @property
    def server(self) -> SimThalassaServer:
        return self.account.server


@pytest.fixture
async def case() -> AsyncIterator[Case]:
    async with open_thalassa() as account:
        organisation = account.organisation
        vpc = organisation.add_vpc()
        account.server.cloud.clients["client +1", "secret+%/of:web"] = organisation
        web_1 = organisation.add_machine("web-1", vpc=vpc, addresses=["10.0.1.7", "fd00::7"])
        off = organisation.add_machine("web-2", vpc=vpc, machine_type="pgp-large")
        organisation.set_state(off, "stopped")
        removed = organisation.add_machine("web-3", vpc=vpc)
        organisation.remove("machines", removed)
        organisation.add_machine("elsewhere", vpc=organisation.add_vpc("other"))
        yield Case(account, vpc, web_1, off, removed)


@pytest.mark.real_servers  # builds a program in Go
@pytest.mark.parametrize("in_body", [None, False, True])
async def test_the_module_in_go_agrees_and_its_types_have_exactly_these_fields(
    case: Case, tmp_path: Path, in_body: bool | None
):
    """With a personal access token, and with client credentials in the header or the body."""
    case.server.cloud.takes_secret_in_body = bool(in_body)
    query = ThalassaQuery(
        endpoint=case.server.endpoint,
        organisation="acme",
        token=SECRET if in_body is None else "",
        client_id="" if in_body is None else "client +1",
        client_secret="" if in_body is None else "secret+%/of:web",
        machines=(case.web_1, case.off, case.removed),
        vpc=case.vpc,
    )
    report = await query_thalassa(query)
    assert (report.error, report.unlike) == ("", ())
    assert report.found == {case.web_1: "web-1", case.off: "web-2", case.removed: ""}
    assert set(report.vpcs or ()) == set(case.account.organisation.tables["vpcs"])

    case.account.keys = {"vpcIdentity": case.vpc}
    async with open_client(case.account, tmp_path) as ours:
        listed = await ours.list_instances()
        assert isinstance(listed, tuple)
        assert [
            (each.identity, each.slug, each.status == "stopped", each.region, each.zone, each.type)
            for each in report.machines or ()
        ] == [
            (each.id, each.name, each.is_shut_down, each.region, each.zone, each.instance_type)
            for each in listed
        ]
        assert [set(each.addresses or ()) for each in report.machines or ()] == [
            {address.address for address in each.addresses} for each in listed
        ]
        assert isinstance(await ours.get_instance(case.off), Instance)
        assert await ours.get_instance(case.removed) == NotFound()


@pytest.mark.real_servers
@pytest.mark.parametrize(("organisation", "status"), [("acme", 401), ("unknown", 403)])
async def test_the_module_in_go_reports_errors(case: Case, organisation: str, status: int):
    token = SECRET if status == 403 else "unknown"
    query = ThalassaQuery(endpoint=case.server.endpoint, organisation=organisation, token=token)
    assert f"status {status}" in (await query_thalassa(query)).error


@pytest.mark.real_servers
async def test_the_module_in_go_changes_load_balancers_and_its_types_have_exactly_these_fields(case: Case):
    organisation = case.account.organisation
    organisation.balancers.build_seconds = 0.05
    organisation.reserved_ips["ip-1"] = "203.0.113.9"
    group = organisation.add_security_group(case.vpc)
    query = ThalassaQuery(
        endpoint=case.server.endpoint,
        organisation="acme",
        token=SECRET,
        vpc=case.vpc,
        changes={
            "subnet": f"subnet-{case.vpc}",
            "machines": [case.web_1, case.off],
            "security_group": group,
            "reserved_ip": "ip-1",
        },
    )
    report = await query_thalassa(query)
    assert (report.error, report.unlike) == ("", ())
    refused = {
        "create_with_a_used_address": "400",
        "create_group_with_a_fast_check": "400",
        "attach_unknown": "400",
        "create_listener_of_the_same_port": "409",
        "delete_used_group": "400",
        "delete_protected": "400",
        "delete_again": "404",
    }
    steps = dict(step.split(": ", 1) for step in report.changes.steps or ())
    assert steps == dict.fromkeys(steps, "ok") | refused
    (address,) = report.changes.balancer.addresses or ()
    assert report.changes.balancer == ThalassaBalancer(
        status="ready",
        labels={"talos-ccm/cluster": "go"},
        addresses=(address,),
        reserved_ip="",
        groups=(group,),
        listeners=("tcp 443 30443 [198.51.100.0/24]",),
        targets=(case.web_1, case.off),
        check="http 30100 /healthz",
    )
    assert address != "203.0.113.9"
    assert organisation.tables["loadbalancers"] == organisation.tables["loadbalancer-target-groups"] == {}


@pytest.mark.real_servers
async def test_the_module_in_go_reports_a_quota(case: Case):
    case.account.organisation.balancers.quota = 0
    query = ThalassaQuery(
        endpoint=case.server.endpoint,
        organisation="acme",
        token=SECRET,
        vpc=case.vpc,
        changes={"subnet": f"subnet-{case.vpc}", "machines": [case.web_1, case.off]},
    )
    steps = (await query_thalassa(query)).changes.steps or ()
    assert "create: 403" in steps
