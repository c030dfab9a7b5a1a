"""Both native credential files of OpenStack; what weakens TLS is refused, and no text has a secret."""

import pytest

from libs.clouds.openstack.cloud_file import parse_cloud_file, read_router_id
from libs.clouds.openstack.login import LoginOptions

SECRET = "only-keystone-knows"
URL = "https://keystone.example/v3"

PASSWORD_CONF = f"""
# of cloud-provider-openstack
[Global]
auth-url={URL}
Username = "web"
password = "{SECRET}"
tenant-id = p1   ; a comment
domain-name = Default
region = north
ca-file = /etc/ca.pem
tls-insecure = false
unknown = "x"

[LoadBalancer]
subnet-id = 6f1c
[LoadBalancerClass "public"]
floating-network-id = 6f1c
"""
APPLICATION_CONF = f"""
[global]
    auth-url = "{URL}"
    application-credential-id = id-1
    application-credential-secret = "{SECRET}"
    tenant-name = "web"
    os-endpoint-type = internal
"""
CLOUDS_YAML = f"""
clouds:
  openstack:
    auth_type: v3applicationcredential
    auth:
      auth_url: {URL}
      application_credential_id: id-1
      application_credential_secret: {SECRET}
    region_name: north
    interface: internal
    identity_api_version: 3
    cacert: /etc/ca.pem
"""

FILES = {
    "cloud.conf with a password": (
        PASSWORD_CONF,
        LoginOptions(
            auth={
                "auth_url": URL,
                "username": "web",
                "password": SECRET,
                "project_id": "p1",
                "user_domain_name": "Default",
                "project_domain_name": "Default",
            },
            region="north",
            ca_file="/etc/ca.pem",
        ),
    ),
    "cloud.conf with an application credential, which has a project": (
        APPLICATION_CONF,
        LoginOptions(
            auth={
                "auth_url": URL,
                "application_credential_id": "id-1",
                "application_credential_secret": SECRET,
            },
            auth_type="v3applicationcredential",
            interface="internal",
        ),
    ),
    "clouds.yaml": (
        CLOUDS_YAML,
        LoginOptions(
            auth={
                "auth_url": URL,
                "application_credential_id": "id-1",
                "application_credential_secret": SECRET,
            },
            auth_type="v3applicationcredential",
            region="north",
            interface="internal",
            ca_file="/etc/ca.pem",
        ),
    ),
    "the only cloud of a clouds.yaml, by the profile of a public cloud": (
        "clouds: {ours: {profile: vexxhost, auth: {username: web}}}",
        LoginOptions(auth={"username": "web"}, profile="vexxhost"),
    ),
}


@pytest.mark.parametrize(("content", "options"), FILES.values(), ids=FILES)
def test_both_native_files_name_the_login(content: str, options: LoginOptions):
    assert parse_cloud_file(content) == options
    assert SECRET not in repr(parse_cloud_file(content))


VALUES = {
    "a b ": "a b",
    '"a # b; c"': "a # b; c",
    "a#b": "a",
    '"a" # comment': "a",
    r'"a\"b\\c"': r'a"b\c',
    "": "",
    '""': "",
}


@pytest.mark.parametrize(("written", "read"), VALUES.items(), ids=VALUES)
def test_a_value_is_read_as_the_native_controller_reads_it(written: str, read: str):
    options = parse_cloud_file(f"[Global]\nauth-url = {URL}\npassword = {written}")
    assert options.auth.get("password", "") == read


def test_a_cloud_conf_names_the_router_of_routes():
    router = "0c1e4a52-6c7b-4a2e-9d52-1f0e6a5c7b11"
    assert read_router_id(f"{PASSWORD_CONF}\n[Route]\nrouter-id = {router}\n") == router
    for content in (PASSWORD_CONF, CLOUDS_YAML, f"{PASSWORD_CONF}\n[Route]\nrouter-id = ../ports\n"):
        with pytest.raises(ValueError, match=r"no \[Route\] with an id as its router-id"):
            read_router_id(content)


DOMAINS = {
    ("domain-id = d",): {"user_domain_id": "d", "project_domain_id": "d"},
    ("domain-name = d", "tenant-domain-id = t"): {"user_domain_name": "d", "project_domain_id": "t"},
    ("user-domain-name = u", "tenant-domain-name = t"): {"user_domain_name": "u", "project_domain_name": "t"},
}


@pytest.mark.parametrize(("lines", "expected"), DOMAINS.items())
def test_a_domain_is_that_of_user_and_project_unless_they_have_their_own(
    lines: tuple[str, ...], expected: dict[str, str]
):
    options = parse_cloud_file("\n".join(["[Global]", f"auth-url = {URL}", *lines]))
    assert options.auth == {"auth_url": URL, **expected}


REFUSED = {
    "no file of these": (SECRET, "neither"),
    "a token": (f"{SECRET}: [", "neither"),
    "no URL": ("[Global]\nusername = web", "no URL of Keystone"),
    "another section": (f"[LoadBalancer]\nauth-url = {URL}", "no URL of Keystone"),
    "unverified": (
        PASSWORD_CONF.replace("tls-insecure = false", "tls-insecure = true"),
        "only to a verified server",
    ),
    "unverified without a value": (
        PASSWORD_CONF.replace("tls-insecure = false", "tls-insecure"),
        "only to a verified server",
    ),
    "another file": (PASSWORD_CONF + "[Global]\nuse-clouds = true", "give that file"),
    "client certificate": (PASSWORD_CONF + "[Global]\ncert-file = /c.pem", "not supported"),
    "no assignment": (f"[Global]\npassword {SECRET}", "line 2 is not key = value"),
    "open quote": (f'[Global]\npassword = "{SECRET}', "line 2 is not key = value"),
    "yaml unverified": (CLOUDS_YAML + "    verify: false\n", "only to a verified server"),
    "yaml insecure": (CLOUDS_YAML + "    insecure: true\n", "only to a verified server"),
    "several clouds": (f"clouds: {{a: {{auth: {{auth_url: {URL}}}}}, b: {{}}}}", "needs one cloud"),
    "no cloud": ("clouds: {}", "needs one cloud"),
    "profile from a URL": ("clouds: {a: {profile: 'https://vendor.example'}}", "not a URL"),
    "number as a password": (
        f"clouds: {{a: {{auth: {{auth_url: {URL}, password: 123456}}}}}}",
        "neither",
    ),
}


@pytest.mark.parametrize(("content", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_file_that_cannot_or_must_not_be_used_is_refused_without_its_secrets(content: str, reason: str):
    with pytest.raises(ValueError, match=reason) as error:
        parse_cloud_file(content)
    assert SECRET not in str(error.value)
    assert "123456" not in str(error.value)
