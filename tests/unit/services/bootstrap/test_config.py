"""The configuration of a server; test_nats_rights has what each user may do with it."""

from typing import Any

import msgspec

from services.bootstrap.server_config import SYSTEM_USER, find_own_address, render_server_config
from services.bootstrap.settings import BootstrapSettings

SETTINGS = BootstrapSettings(prefix="ccm", cloud_accounts=("prod", "staging"))
KEYS = {user: f"U{user.upper()}" for user in (*SETTINGS.names.users, SYSTEM_USER)}


def render(**changes: object) -> dict[str, Any]:
    """The configuration of this server, as nats-server reads it: without the comment at its beginning."""
    settings = msgspec.structs.replace(SETTINGS, **changes)
    comment, _, text = render_server_config(settings, KEYS).partition("\n")
    assert comment.startswith("# ")
    config: dict[str, Any] = msgspec.json.decode(text)
    return config


def test_a_lone_server_has_no_routes_and_several_prove_themselves_to_one_another():
    assert "cluster" not in render()
    config = render(replicas=3)
    assert (
        "tls://ccm-nats-2.ccm-nats-headless.kube-system.svc.cluster.local:6222" in config["cluster"]["routes"]
    )
    assert config["cluster"]["tls"]["verify"] is True
    assert "verify" not in config["tls"]


def test_an_ipv6_address_is_written_in_brackets():
    assert render(listen_address="::")["http"] == "[::]:8222"
    assert find_own_address(BootstrapSettings(listen_address="::")) == "127.0.0.1:4222"
    assert find_own_address(BootstrapSettings(listen_address="fd00::1")) == "[fd00::1]:4222"


def test_a_probe_port_of_0_is_none():
    assert "http" not in render(monitor_port=0)
