"""Files that operators write, and the templates in them."""

import base64
import tempfile
from functools import partial
from pathlib import Path
from typing import Final

from libs.common.cloud_config.document import CloudConfigError, parse_cloud_config
from libs.common.cloud_config.fact_fields import (
    list_queried_fields,
    required_resources,
)
from libs.common.cloud_config.selectors import match_selector
from libs.common.kube.kube_config import KubeConfigError
from libs.common.kube.kubeconfig import load_context
from libs.common.safe_yaml import YamlError, read_yaml
from libs.gotemplate import Given, TemplateError, parse, record, render
from libs.gotemplate.bounds import MAX_TEXT
from libs.talos.talosconfig import CredentialsError, parse_talosconfig, read_client_certificate
from tests.cloud_config_mutations import SEEDS
from tests.fuzz.request_targets import encode_self_signed
from tests.fuzz.target import Target

# The parsers accept a megabyte, which takes seconds here.
_yaml_target = partial(Target, format="yaml", max_bytes=2**15)
_PEM: Final = base64.b64encode(b"-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n")
_KUBECONFIG: Final = b"""current-context: x
contexts: [{name: x, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: 'https://10.0.0.1:6443', certificate-authority-data: %b}}]
users: [{name: u, user: %b}]
"""
_USERS: Final = (
    b"{token: t}",
    b"{client-certificate-data: %b, client-key-data: %b}" % (_PEM, _PEM),
    b"{exec: {apiVersion: client.authentication.k8s.io/v1, command: ./a, env: [{name: A, value: b}]}}",
    b"{auth-provider: {name: oidc, config: {id-token: a.%b.c}}}"
    % base64.urlsafe_b64encode(b'{"exp":1700000000}'),
)
_TALOSCONFIG: Final = (
    b"context: a\ncontexts:\n  a:\n    endpoints: [%b]\n    ca: %b\n    crt: %b\n    key: %b\n"
)
_TEMPLATES: Final = (
    b'{{ regexFindString "^web-([a-z0-9]+)-(.*)$" .Hostname 1 }}',
    b'{{- if and .Spot (eq .Zone "7") -}}a{{else if .Tags.a}}{{range $k, $v := .Tags}}{{$k}}{{end}}{{end}}',
    b'{{define "a"}}{{template "a" .}}{{end}}{{template "a" .}}',
    b'{{ printf "%5.2f|%q|%x" 1e9 .Hostname 0x7f | replace "a" "b" | upper | b64enc }}',
)


def _yaml(data: bytes) -> None:
    read_yaml(data, dict[str, object])


def _cloud_config(data: bytes) -> None:
    config = parse_cloud_config(data, "f")
    required_resources(config.rules, config.pools)
    for pool in config.pools:
        assert match_selector(pool.selector, {}).reason
    for rule in config.rules:
        assert match_selector(rule.selector, {}).reason
        list_queried_fields(rule)
        rule.entries()
    assert all(finding.format("f").isprintable() for finding in (*config.warnings, *config.differences))


def _kubeconfig(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config"
        path.write_bytes(data)
        config = load_context([path], "", "--kubeconfig", {})
        assert config.server.startswith(("https://", "http://"))


def _talosconfig(data: bytes) -> None:
    config = parse_talosconfig(data, source="f")
    assert config.endpoints
    assert all(0 < endpoint.port < 65536 for endpoint in config.endpoints)


def _talos_certificate(data: bytes) -> None:
    certificate, _, key = data.partition(b"\n--\n")
    read_client_certificate(certificate, key, where="f")


def _template(data: bytes) -> None:
    source = data.decode(errors="replace")
    facts: dict[str, Given] = {
        "Hostname": "web-1-é",
        "Zone": "7",
        "Tags": {"a": "1", "b": "x" * 50},
        "Spot": True,
    }
    assert len(render(parse(source), record("Machine", facts)).encode()) <= MAX_TEXT


TARGETS: Final = (
    _yaml_target(
        name="yaml",
        run=_yaml,
        seeds=lambda: (b"a: &a {b: [1, 2.5, ~, 'x']}\nc: *a\n", b"<<: {a: 1}\nb: |\n  text\n"),
        errors=(YamlError,),
    ),
    _yaml_target(
        name="cloud-config",
        run=_cloud_config,
        seeds=lambda: tuple(map(str.encode, SEEDS)),
        errors=(CloudConfigError,),
    ),
    _yaml_target(
        name="kubeconfig",
        run=_kubeconfig,
        seeds=lambda: tuple(_KUBECONFIG % (_PEM, user) for user in _USERS),
        errors=(KubeConfigError,),
    ),
    _yaml_target(
        name="talosconfig",
        run=_talosconfig,
        seeds=lambda: (
            _TALOSCONFIG % (b"10.0.0.1, '[fd00::1]:51000', https://a.example:8443/", _PEM, _PEM, _PEM),
            b"context: a\ncontexts: {a: {target: x, auth: {siderov1: {identity: me}}}}",
        ),
        errors=(CredentialsError,),
    ),
    Target(
        name="talos-certificate",
        format="der",
        run=_talos_certificate,
        seeds=lambda: (b"\n--\n".join(encode_self_signed()),),
        errors=(CredentialsError,),
    ),
    Target(
        name="template", format="template", run=_template, seeds=lambda: _TEMPLATES, errors=(TemplateError,)
    ),
)
