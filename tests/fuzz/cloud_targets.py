"""What a cloud answers, or a proxy before it."""

import contextlib
from typing import Final

import msgspec

from libs.clouds.balancers import WriteRejection
from libs.clouds.hcloud.responses import Server, build_instance, read_item, read_page
from libs.clouds.http_reader import HttpResponse
from libs.clouds.instances import Deleted, Instance, NotFound, Unanswered
from libs.clouds.openstack import object_responses
from libs.clouds.openstack.balancers.documents import (
    FloatingIp,
    HealthMonitor,
    Listener,
    LoadBalancer,
    Member,
    ObservedBalancer,
    Pool,
)
from libs.clouds.openstack.balancers.ownership import read_description
from libs.clouds.openstack.balancers.plan import build_balancer
from libs.clouds.openstack.cloud_file import parse_cloud_file, read_balancer_sections
from libs.clouds.openstack.login import Login
from libs.clouds.openstack.responses import (
    Action,
    Page,
    explain_contradiction,
    is_deletion,
    read_first_anchor,
    read_last_action,
    read_server,
    read_servers,
)
from libs.clouds.openstack.router_changes import Port, Router
from libs.clouds.thalassa import responses as thalassa
from libs.clouds.thalassa.balancers import documents as thalassa_balancers
from libs.clouds.thalassa.balancers import plan as thalassa_plan
from libs.clouds.thalassa.balancers import write_responses as thalassa_writes
from libs.testbed.clouds.hcloud.objects import make_server
from libs.testbed.clouds.openstack.objects import make_action, make_event, make_network
from libs.testbed.clouds.openstack.objects import make_server as make_openstack_server
from libs.testbed.clouds.thalassa.objects import make_machine, make_organisation, make_vpc
from tests.fuzz.target import Target

_PAGE: Final = {"page": 1, "per_page": 50, "next_page": None, "last_page": 1, "total_entries": 1}


def _hcloud(data: bytes) -> None:
    found = read_item(HttpResponse(200, {}, data), "server", Server)
    assert isinstance(found, Server | Unanswered)
    page = read_page(HttpResponse(200, {}, data), "servers", Server)
    servers = [found] if isinstance(found, Server) else [] if isinstance(page, Unanswered) else page.items
    for server in servers:
        built = build_instance(server)
        assert isinstance(built, Instance | Unanswered)
        assert isinstance(built, Unanswered) or int(built.id) > 0
    error = read_item(HttpResponse(404, {}, data), "server", Server)
    assert isinstance(error, Unanswered) or (error == NotFound() and b"not_found" in data)


def _hcloud_answers() -> tuple[bytes, ...]:
    server = make_server(7, "web-1", ipv4="192.0.2.7", ipv6="2001:db8::/64", private=[(5, "10.0.0.7")])
    documents = (
        {"server": server},
        {"servers": [server], "meta": {"pagination": _PAGE}},
        {"error": {"code": "not_found", "message": "no", "details": None}},
    )
    return tuple(map(msgspec.json.encode, documents))


def _thalassa(data: bytes) -> None:
    listed = thalassa.read_list(HttpResponse(200, {}, data), thalassa.Machine, organisation="acme")
    found = thalassa.read_item(HttpResponse(200, {}, data), "vm-7", thalassa.Machine, organisation="acme")
    for machine in (*(listed if isinstance(listed, tuple) else ()), found):
        if isinstance(machine, thalassa.Machine):
            built = thalassa.build_instance(machine)
            assert isinstance(built, Instance | Deleted | Unanswered)
            assert not isinstance(built, Deleted) or b"deleted" in data
    error = thalassa.read_item(HttpResponse(404, {}, data), "vm-7", thalassa.Machine, organisation="acme")
    assert isinstance(error, Unanswered) or (error == NotFound() and b"message" in data)
    thalassa.read_access_token(HttpResponse(200, {}, data))


def _thalassa_answers() -> tuple[bytes, ...]:
    vpc = make_vpc("vpc-1", "net", make_organisation("o-1", "acme"))
    machine = make_machine("vm-7", "web-1", vpc, addresses=["10.0.1.7"])
    token = {"access_token": "a", "token_type": "Bearer", "expires_in": 3600}
    return tuple(map(msgspec.json.encode, (machine, [machine], {"message": "not found"}, token)))


def _thalassa_balancers(data: bytes) -> None:
    answer = HttpResponse(200, {}, data)
    for kind in (
        thalassa_balancers.LoadBalancer,
        thalassa_balancers.TargetGroup,
        thalassa_balancers.Listener,
    ):
        listed = thalassa.read_list(answer, kind, organisation="acme")
        assert isinstance(listed, tuple | Unanswered)
        found = thalassa.read_item(answer, "lb-7", kind, organisation="acme")
        if isinstance(found, thalassa_balancers.LoadBalancer):
            observed = thalassa_balancers.ObservedBalancer(balancer=found, listeners=found.listeners or ())
            built = thalassa_plan.build_balancer(observed)
            assert built.id == "lb-7"
            assert isinstance(thalassa_plan.plan_release(built), tuple)
    for status in (400, 401, 403, 404, 409, 503):
        rejected = thalassa_writes.read_deletion(HttpResponse(status, {}, data))
        assert isinstance(rejected, WriteRejection | NotFound | Unanswered)
        assert not isinstance(rejected, WriteRejection) or rejected.reason.isprintable()
    assert isinstance(thalassa_writes.read_created(HttpResponse(201, {}, data)), str | Unanswered)


def _thalassa_balancer_answers() -> tuple[bytes, ...]:
    listener = {"identity": "l-1", "port": 80, "protocol": "tcp", "allowedSources": ["192.0.2.0/24", "x"]}
    balancer = {
        "identity": "lb-7",
        "name": "web",
        "createdAt": "2026-01-02T03:04:05Z",
        "labels": {"talos-ccm/cluster": "a", "talos-ccm/service-uid": "b", "talos-ccm/account": "c"},
        "organisation": {"slug": "acme"},
        "status": "ready",
        "loadbalancerListeners": [listener],
    }
    check = {"protocol": "http", "port": 1, "path": "/", "periodSeconds": 10, "timeoutSeconds": 5}
    group = {
        "identity": "tg-7",
        "name": "web",
        "createdAt": "2026-01-02T03:04:05Z",
        "targetPort": 30080,
        "protocol": "tcp",
        "healthCheck": check | {"healthyThreshold": 2, "unhealthyThreshold": 3},
        "loadbalancerTargetGroupAttachments": [{"identity": "a-1", "virtualMachineInstance": None}],
    }
    documents = (
        balancer,
        [balancer],
        [group],
        [listener],
        {"message": "quota exceeded"},
        {"identity": "lb-7"},
    )
    return tuple(map(msgspec.json.encode, documents))


_LOGIN: Final = Login(
    token="t",
    lifetime_seconds=3600,
    project="p",
    region="r",
    compute="",
    load_balancer="",
    network="",
    microversion="2.69",
)
_SERVER_ID: Final = "0c1e4a52-6c7b-4a2e-9d52-1f0e6a5c7b11"
_NOVA: Final = {"OpenStack-API-Version": "compute 2.69"}


def _openstack(data: bytes) -> None:
    found = read_server(HttpResponse(200, _NOVA, data), _LOGIN, _SERVER_ID)
    assert isinstance(found, Unanswered) or (isinstance(found, Instance) and found.id == _SERVER_ID)
    page = read_servers(HttpResponse(200, _NOVA, data), _LOGIN)
    assert isinstance(page, Page | Unanswered)
    assert isinstance(page, Unanswered) or explain_contradiction([page]) is not None
    error = read_server(HttpResponse(404, _NOVA, data), _LOGIN, _SERVER_ID)
    assert isinstance(error, Unanswered) or (error == NotFound() and b"itemNotFound" in data)
    last = read_last_action(HttpResponse(200, _NOVA, data), _LOGIN, _SERVER_ID)
    assert not isinstance(last, Action) or isinstance(is_deletion(last, _SERVER_ID), bool)
    read_first_anchor(HttpResponse(200, {}, data), _LOGIN)


def _openstack_answers() -> tuple[bytes, ...]:
    server = make_openstack_server(
        _SERVER_ID, "web-1", project="p", addresses={"net": [("10.0.0.7", "fixed")]}
    )
    action = make_action(server, "req-1", "delete", events=[make_event("compute_terminate_instance")])
    link = {"rel": "next", "href": "http://nova/servers?marker=1"}
    documents = (
        {"server": server},
        {"servers": [server], "servers_links": [link]},
        {"instanceActions": [action]},
        {"networks": [make_network(_SERVER_ID, "net", project="p")]},
        {"itemNotFound": {"code": 404, "message": f"Instance {_SERVER_ID} could not be found."}},
    )
    return tuple(map(msgspec.json.encode, documents))


def _octavia(data: bytes) -> None:
    answer = HttpResponse(200, {}, data)
    for kind, item in _OCTAVIA.items():
        page = object_responses.read_page(answer, f"{kind}s", item)
        assert isinstance(page, object_responses.Page | Unanswered)
        found = object_responses.read_item(answer, kind, item, _SERVER_ID)
        assert isinstance(found, Unanswered) or getattr(found, "id", "") == _SERVER_ID
        if isinstance(found, LoadBalancer):
            with contextlib.suppress(ValueError):
                build_balancer(ObservedBalancer(balancer=found))
        if isinstance(found, FloatingIp):
            read_description(found.description)
    missing = object_responses.read_item(
        HttpResponse(404, {}, data), "loadbalancer", LoadBalancer, _SERVER_ID
    )
    assert isinstance(missing, Unanswered) or (missing == NotFound() and _SERVER_ID.encode() in data)
    for status in (400, 403, 409, 501, 503):
        rejected = object_responses.read_accepted(HttpResponse(status, {}, data))
        assert isinstance(rejected, WriteRejection | Unanswered)
        assert isinstance(rejected, Unanswered) or rejected.reason.isprintable()
    created = object_responses.read_created(HttpResponse(201, {}, data), "loadbalancer")
    assert isinstance(created, str | Unanswered)


def _octavia_answers() -> tuple[bytes, ...]:
    here = [{"id": _SERVER_ID}]
    tags = ["talos-ccm/cluster=a", "talos-ccm/service-uid=b", "talos-ccm/account=c"]
    balancer = {
        "id": _SERVER_ID,
        "name": "a1",
        "project_id": "p",
        "created_at": "2026-11-29T02:11:05",
        "provisioning_status": "ACTIVE",
        "vip_address": "10.0.0.9",
        "vip_port_id": _SERVER_ID,
        "tags": tags,
        "listeners": here,
    }
    address = {
        "id": _SERVER_ID,
        "project_id": "p",
        "floating_ip_address": "203.0.113.7",
        "floating_network_id": _SERVER_ID,
        "port_id": None,
        "description": "shop talos-ccm/reserved " + " ".join(tags),
        "created_at": "2026-11-29T02:15:15Z",
    }
    documents = (
        {"loadbalancer": balancer},
        {"loadbalancers": [balancer], "loadbalancers_links": [{"rel": "next", "href": "http://o/"}]},
        {"floatingip": address},
        {"faultcode": "Client", "faultstring": f"Load Balancer {_SERVER_ID} not found.", "debuginfo": None},
        {"NeutronError": {"type": "OverQuota", "message": "Quota exceeded", "detail": ""}},
    )
    return tuple(map(msgspec.json.encode, documents))


_OCTAVIA: Final[dict[str, type]] = {
    "loadbalancer": LoadBalancer,
    "listener": Listener,
    "pool": Pool,
    "member": Member,
    "healthmonitor": HealthMonitor,
    "floatingip": FloatingIp,
    "router": Router,
    "port": Port,
}


def _credential(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        read_balancer_sections(data.decode(errors="replace"))
    try:
        options = parse_cloud_file(data.decode(errors="replace"))
    except ValueError:
        return
    assert "secret" not in repr(options).replace("application_credential_secret", "")


def _credential_files() -> tuple[bytes, ...]:
    conf = (
        b'[Global]\nauth-url = https://k\napplication-credential-id="a"\napplication-credential-secret="s"\n'
    )
    yaml = b"clouds:\n  openstack:\n    auth: {auth_url: https://k, password: s}\n    region_name: r\n"
    return conf, yaml


TARGETS: Final = (
    Target(name="cloud-hcloud", format="json", run=_hcloud, seeds=_hcloud_answers),
    Target(name="cloud-thalassa", format="json", run=_thalassa, seeds=_thalassa_answers),
    Target(
        name="cloud-thalassa-balancers",
        format="json",
        run=_thalassa_balancers,
        seeds=_thalassa_balancer_answers,
    ),
    Target(name="cloud-openstack", format="json", run=_openstack, seeds=_openstack_answers),
    Target(name="cloud-octavia", format="json", run=_octavia, seeds=_octavia_answers),
    Target(
        name="cloud-openstack-file",
        format="yaml",
        max_bytes=2**15,
        run=_credential,
        seeds=_credential_files,
    ),
)
