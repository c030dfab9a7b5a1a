"""The credential file of an OpenStack account: `cloud.conf` of cloud-provider-openstack, or `clouds.yaml`."""

import re
from typing import Final

import msgspec

from libs.clouds.openstack.login import LoginOptions
from libs.clouds.openstack.responses import UUID
from libs.common.safe_yaml import YamlError, read_yaml

# Key of [Global] in cloud.conf: option of openstacksdk's authentication.
_AUTH_KEYS: Final = {
    "auth-url": "auth_url",
    "user-id": "user_id",
    "username": "username",
    "password": "password",
    "user-domain-id": "user_domain_id",
    "user-domain-name": "user_domain_name",
    "tenant-id": "project_id",
    "tenant-name": "project_name",
    "tenant-domain-id": "project_domain_id",
    "tenant-domain-name": "project_domain_name",
    "trust-id": "trust_id",
    "application-credential-id": "application_credential_id",
    "application-credential-name": "application_credential_name",
    "application-credential-secret": "application_credential_secret",
}
_UNVERIFIED: Final = "the credential is sent only to a verified server: name its authority"
_REJECTED: Final = {
    "tls-insecure": f"{_UNVERIFIED} in ca-file",
    "use-clouds": "give that file as the credential instead",
    "cert-file": "client certificates are not supported",
    "key-file": "client certificates are not supported",
}
_SECTION: Final = re.compile(r'\[\s*([A-Za-z0-9-]+)(?:\s+"([^"]*)")?\s*\]\s*(?:[#;].*)?')
_ASSIGNMENT: Final = re.compile(r"([A-Za-z][A-Za-z0-9-]*)\s*(?:=\s*(.*))?")
# A quoted value, in which a backslash escapes, or one that ends where a comment begins.
_VALUE: Final = re.compile(r'"((?:[^"\\]|\\["\\])*)"\s*(?:[#;].*)?|([^"#;]*)(?:[#;].*)?')
_DEFAULT_CLOUD: Final = "openstack"  # as dashboards name it in the file that they offer


class _Cloud(msgspec.Struct, frozen=True):
    auth: dict[str, str] = {}
    auth_type: str = "password"
    region_name: str = ""
    interface: str = "public"
    cacert: str = ""
    profile: str = ""
    verify: bool = True
    insecure: bool = False


class _CloudsFile(msgspec.Struct, frozen=True):
    clouds: dict[str, _Cloud]


def parse_cloud_file(content: str) -> LoginOptions:
    """Return the options in either format. Raises ValueError with a reason that has no value of the file."""
    options = _parse_cloud_conf(content) if _is_cloud_conf(content) else _parse_clouds_yaml(content)
    if "://" in options.profile:
        raise ValueError("clouds.yaml: a profile is a name, not a URL")
    if "auth_url" not in options.auth and not options.profile:
        raise ValueError("the credential file has no URL of Keystone")
    return options


def _parse_cloud_conf(content: str) -> LoginOptions:
    given = _read_section(content, "global")
    for key, why in _REJECTED.items():
        if given.get(key, "false") not in ("false", ""):
            raise ValueError(f"cloud.conf: {key} is set: {why}")
    auth = {option: given[key] for key, option in _AUTH_KEYS.items() if given.get(key)}
    for part in ("id", "name"):
        for owner in ("user", "project"):
            if given.get(f"domain-{part}") and not {f"{owner}_domain_id", f"{owner}_domain_name"} & set(auth):
                auth[f"{owner}_domain_{part}"] = given[f"domain-{part}"]
    is_application = "application_credential_secret" in auth
    if is_application:  # it has a project of its own
        auth = {option: value for option, value in auth.items() if not option.startswith("project_")}
    return LoginOptions(
        auth=auth,
        auth_type="v3applicationcredential" if is_application else "password",
        region=given.get("region", ""),
        interface=given.get("os-endpoint-type") or "public",
        ca_file=given.get("ca-file", ""),
    )


def read_balancer_sections(content: str) -> dict[str, dict[str, str]]:
    """Return the keys of `[LoadBalancer]` below "", and those of each `[LoadBalancerClass "name"]`.

    A `clouds.yaml` has none. Raises ValueError with a reason that has no value of the file.
    """
    if not _is_cloud_conf(content):
        return {}
    named = {name: _read_section(content, "loadbalancerclass", name) for name in _list_classes(content)}
    return {"": _read_section(content, "loadbalancer"), **named}


def read_router_id(content: str) -> str:
    """Return `router-id` of `[Route]`. Raises ValueError with a reason that has no value of the file."""
    router = _read_section(content, "route").get("router-id", "") if _is_cloud_conf(content) else ""
    if not re.fullmatch(UUID, router):
        raise ValueError("the credential file has no [Route] with an id as its router-id")
    return router


def _is_cloud_conf(content: str) -> bool:
    lines = (line.strip() for line in content.splitlines())
    return next((line for line in lines if line and line[0] not in "#;"), "").startswith("[")


def _list_classes(content: str) -> set[str]:
    headers = (_SECTION.fullmatch(line.strip()) for line in content.splitlines())
    return {each[2] for each in headers if each and each[1].lower() == "loadbalancerclass" and each[2]}


def _read_section(content: str, wanted: str, name: str | None = None) -> dict[str, str]:
    """Return keys and values of one section, as Go's gcfg reads them; a key without a value is "true"."""
    found: dict[str, str] = {}
    section: tuple[str, str | None] = ("", None)
    for number, line in enumerate(map(str.strip, content.splitlines()), start=1):
        if not line or line[0] in "#;":
            continue
        if header := _SECTION.fullmatch(line):
            section = (header[1].lower(), header[2])
            continue
        if section[0] != wanted or name not in {None, section[1]}:
            continue
        assignment = _ASSIGNMENT.fullmatch(line)
        value = None if assignment is None else _VALUE.fullmatch(assignment[2] or "")
        if assignment is None or value is None:
            raise ValueError(f"cloud.conf: line {number} is not key = value")
        text = value[2].strip() if value[1] is None else re.sub(r"\\(.)", r"\1", value[1])
        found[assignment[1].lower()] = "true" if assignment[2] is None else text
    return found


def _parse_clouds_yaml(content: str) -> LoginOptions:
    try:
        clouds = read_yaml(content.encode(), _CloudsFile).clouds
    except YamlError:  # its text can repeat a part of the file
        raise ValueError("the credential file is neither a cloud.conf nor a usable clouds.yaml") from None
    cloud = clouds.get(_DEFAULT_CLOUD) or (next(iter(clouds.values())) if len(clouds) == 1 else None)
    if cloud is None:
        raise ValueError(f"clouds.yaml: needs one cloud, or one with the name {_DEFAULT_CLOUD}")
    if cloud.insecure or not cloud.verify:
        raise ValueError(f"clouds.yaml: verify is off: {_UNVERIFIED} in cacert")
    return LoginOptions(
        auth=cloud.auth,
        auth_type=cloud.auth_type,
        region=cloud.region_name,
        interface=cloud.interface,
        ca_file=cloud.cacert,
        profile=cloud.profile,
    )
