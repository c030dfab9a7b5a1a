"""What Keystone, Nova and Neutron answer to a request, without faults."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from libs.testbed.clouds.api_server import SimRequest
from libs.testbed.clouds.http_faults import Answer
from libs.testbed.clouds.openstack.objects import Document, Microversion, make_link, render_server
from libs.testbed.clouds.openstack.state import OpenStackState, SimRegion, SimToken

_DELETED_ACTIONS_SINCE: Final = (2, 21)
_EVENTS_SINCE: Final = (2, 51)
_MEDIA_TYPES: Final = [{"base": "application/json", "type": "application/vnd.openstack.identity-v3+json"}]


def make_keystone_error(status: int, title: str) -> Answer:
    """Return an error in the form of Keystone, which its middleware before other services has too."""
    error = {"code": status, "title": title, "message": f"{title}."}
    return Answer(status=status, document={"error": error})


def make_nova_fault(status: int, fault: str, message: str, **headers: str) -> Answer:
    """Return an error in the form of Nova."""
    return Answer(status=status, document={fault: {"code": status, "message": message}}, headers=headers)


def make_neutron_error(status: int, kind: str, message: str) -> Answer:
    """Return an error in the form of Neutron."""
    error = {"type": kind, "message": message, "detail": ""}
    return Answer(status=status, document={"NeutronError": error})


def get_base_url(headers: Mapping[str, str]) -> str:
    """Return the URL below which all services are."""
    return f"http://{headers['Host']}"


def answer_request(cloud: OpenStackState, request: SimRequest) -> Answer:
    """Return the answer of the service whose path it is."""
    path = request.path.strip("/").split("/")
    match path:
        case ["identity", *rest]:
            return _answer_keystone(cloud, request, rest)
        case ["compute", region, *rest] if region in cloud.regions:
            url = f"{get_base_url(request.headers)}/compute/{region}/v2.1/"
            if rest in ([], ["v2.1"]):
                return _describe_nova(cloud, url, is_list=not rest)
            token = cloud.find_token(request.token)
            if token is None:
                return make_keystone_error(401, "Unauthorized")
            return _answer_nova(cloud, cloud.regions[region], token, request, rest)
        case ["network", region, *rest] if region in cloud.regions:
            token = cloud.find_token(request.token)
            if rest in ([], ["v2.0"]):
                url = f"{get_base_url(request.headers)}/network/{region}/v2.0/"
                version = {"id": "v2.0", "status": "CURRENT", "links": [make_link(url)]}
                return Answer(status=200, document={"versions": [version]})
            if token is None:
                return make_keystone_error(401, "Unauthorized")
            return _answer_neutron(cloud.regions[region], token, request, rest)
    return make_keystone_error(404, "Not Found")


# ---- Keystone


def _answer_keystone(cloud: OpenStackState, request: SimRequest, path: list[str]) -> Answer:
    base = get_base_url(request.headers)
    version = {
        "id": "v3.14",
        "status": "stable",
        "updated": "2020-04-07T00:00:00Z",
        "links": [make_link(f"{base}/identity/v3/")],
        "media-types": _MEDIA_TYPES,
    }
    match request.method, path:
        case "GET", []:
            return Answer(status=300, document={"versions": {"values": [version]}})
        case "GET", ["v3"]:
            return Answer(status=200, document={"version": version})
        case "POST", ["v3", "auth", "tokens"]:
            return _issue_token(cloud, msgspec.json.decode(request.body)["auth"], base)
    return make_keystone_error(404, "Not Found")


def _issue_token(cloud: OpenStackState, auth: Document, base: str) -> Answer:
    identity = auth["identity"]
    user, project = "", None
    if identity["methods"] == ["password"]:
        given = identity["password"]["user"]
        user = given.get("name", "")
        project = cloud.passwords.get((user, given["password"]))
        scope = auth.get("scope", {}).get("project", {})
        if project not in {scope.get("id"), _find_project(cloud, scope.get("name"))}:
            project = None
    elif identity["methods"] == ["application_credential"]:
        given = identity["application_credential"]
        project = cloud.application_credentials.get((given.get("id", ""), given["secret"]))
    if project is None:
        return make_keystone_error(401, "Unauthorized")
    token = cloud.issue_token(project, is_admin=user in cloud.admins)
    issued_at = cloud.tokens[token].issued_at
    domain = {"id": "default", "name": "Default"}
    document = {
        "methods": identity["methods"],
        "user": {"domain": domain, "id": "user", "name": user, "password_expires_at": None},
        "audit_ids": ["3T2dc1CGQxyJsHdDu1xkcw"],
        "issued_at": _format_time(issued_at),
        "expires_at": _format_time(issued_at + cloud.token_seconds),
        "project": {"domain": domain, "id": project, "name": cloud.project_names[project]},
        "is_domain": False,
        "roles": [{"id": "reader", "name": "reader"}],
        "catalog": _make_catalog(cloud, base),
    }
    return Answer(status=201, document={"token": document}, headers={"X-Subject-Token": token})


def _find_project(cloud: OpenStackState, name: str | None) -> str | None:
    return next((project for project, its_name in cloud.project_names.items() if its_name == name), None)


def _make_catalog(cloud: OpenStackState, base: str) -> list[Document]:
    return [
        {
            "id": kind,
            "type": kind,
            "name": name,
            "endpoints": [
                {
                    "id": f"{kind}-{region}",
                    "interface": "public",
                    "region": region,
                    "region_id": region,
                    "url": base + path.format(region),
                }
                for region in cloud.regions
            ],
        }
        for kind, name, path in (
            ("identity", "keystone", "/identity"),
            ("compute", "nova", "/compute/{}/v2.1"),
            ("network", "neutron", "/network/{}"),
            ("load-balancer", "octavia", "/load-balancer/{}"),
        )
    ]


def _format_time(unix_time: float) -> str:
    return datetime.fromtimestamp(unix_time, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


# ---- Nova


def _describe_nova(cloud: OpenStackState, url: str, *, is_list: bool) -> Answer:
    version = {
        "id": "v2.1",
        "status": "CURRENT",
        "version": _format_version(cloud.max_microversion),
        "min_version": "2.1",
        "updated": "2013-07-23T11:33:21Z",
        "links": [make_link(url)],
    }
    return Answer(status=200, document={"versions": [version]} if is_list else {"version": version})


def _answer_nova(
    cloud: OpenStackState, region: SimRegion, token: SimToken, request: SimRequest, path: list[str]
) -> Answer:
    asked = request.headers.get("OpenStack-API-Version", "compute 2.1").removeprefix("compute ")
    major, _, minor = asked.partition(".")
    microversion = (int(major), int(minor))
    if not (2, 1) <= microversion <= cloud.max_microversion:
        return make_nova_fault(406, "computeFault", f"Version {asked} is not supported by the API.")
    answer = _read_servers(cloud, region, token, request, path=path, microversion=microversion)
    headers = {
        "OpenStack-API-Version": f"compute {asked}",
        "X-OpenStack-Nova-API-Version": asked,
        "Vary": "OpenStack-API-Version, X-OpenStack-Nova-API-Version",
    }
    return Answer(status=answer.status, document=answer.document, headers={**answer.headers, **headers})


def _read_servers(
    cloud: OpenStackState,
    region: SimRegion,
    token: SimToken,
    request: SimRequest,
    *,
    path: list[str],
    microversion: Microversion,
) -> Answer:
    match request.method, path:
        case "GET", ["v2.1", "servers", "detail"]:
            return _list_servers(cloud, region, token, request, microversion)
        case "GET", ["v2.1", "servers", server_id]:
            found = _find_server(region.servers, token, server_id)
            if found is None:
                return make_no_server(server_id)
            return Answer(status=200, document={"server": render_server(found, microversion)})
        case "GET", ["v2.1", "servers", server_id, "os-instance-actions", *request_ids]:
            has_deleted = microversion >= _DELETED_ACTIONS_SINCE
            servers = region.servers | (region.deleted if has_deleted else {})
            if _find_server(servers, token, server_id) is None:
                return make_no_server(server_id)
            has_events = token.is_admin or microversion >= _EVENTS_SINCE
            return _read_actions(region.actions[server_id], request_ids, has_events=has_events)
    if request.method != "GET":
        return make_nova_fault(403, "forbidden", "Policy doesn't allow this to be performed.")
    return make_nova_fault(404, "itemNotFound", "The resource could not be found.")  # an unknown path


def make_no_server(server_id: str) -> Answer:
    """Return that Nova has no such server."""
    return make_nova_fault(404, "itemNotFound", f"Instance {server_id} could not be found.")


def _read_actions(actions: list[Document], request_ids: list[str], *, has_events: bool) -> Answer:
    if not request_ids:
        listed = [{name: value for name, value in each.items() if name != "events"} for each in actions]
        return Answer(status=200, document={"instanceActions": listed})
    found = next((each for each in actions if each["request_id"] == request_ids[0]), None)
    if found is None:
        return make_nova_fault(404, "itemNotFound", f"Action {request_ids[0]} not found")
    shown = {name: value for name, value in found.items() if name != "events" or has_events}
    return Answer(status=200, document={"instanceAction": shown})


def _find_server(servers: Mapping[str, Document], token: SimToken, server_id: str) -> Document | None:
    found = servers.get(server_id)
    return found if found is not None and (token.is_admin or found["tenant_id"] == token.project) else None


def _list_servers(
    cloud: OpenStackState, region: SimRegion, token: SimToken, request: SimRequest, microversion: Microversion
) -> Answer:
    pattern = re.compile(request.query.get("name", ""), re.IGNORECASE)  # as MySQL compares
    newest_first = [
        each
        for each in reversed(region.servers.values())
        if each["tenant_id"] == token.project and pattern.search(each.get("name", ""))
    ]
    marker = request.query.get("marker")
    if marker is not None:
        ids = [each["id"] for each in newest_first]
        if marker not in ids:
            return make_nova_fault(400, "badRequest", f"marker [{marker}] not found")
        newest_first = newest_first[ids.index(marker) + 1 :]
    limit = min(int(request.query.get("limit", cloud.max_limit)), cloud.max_limit)
    items = newest_first[:limit]
    document: dict[str, Any] = {"servers": [render_server(each, microversion) for each in items]}
    if len(items) == limit:
        url = f"{get_base_url(request.headers)}{request.path}?limit={limit}&marker={items[-1]['id']}"
        document["servers_links"] = [make_link(url, "next")]
    return Answer(status=200, document=document)


# ---- Neutron


def _answer_neutron(region: SimRegion, token: SimToken, request: SimRequest, path: list[str]) -> Answer:
    visible = {
        network_id: each
        for network_id, each in region.networks.items()
        if token.is_admin or each["shared"] or each["project_id"] == token.project
    }
    match request.method, path:
        case "GET", ["v2.0", "networks"]:
            project = request.query.get("project_id")
            items = [each for each in visible.values() if project in {None, each["project_id"]}]
            return Answer(status=200, document={"networks": items})
        case "GET", ["v2.0", "networks", network_id]:
            found = visible.get(network_id)
            if found is None:
                return make_no_network(network_id)
            return Answer(status=200, document={"network": found})
    if request.method != "GET":
        return make_neutron_error(403, "PolicyNotAuthorized", "disallowed by policy")
    return make_neutron_error(404, "HTTPNotFound", "The resource could not be found.")


def make_no_network(network_id: str) -> Answer:
    """Return that Neutron has no such network."""
    return make_neutron_error(404, "NetworkNotFound", f"Network {network_id} could not be found.")


def _format_version(version: Microversion) -> str:
    return f"{version[0]}.{version[1]}"
