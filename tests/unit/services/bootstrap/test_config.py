"""A server's configuration follows the service specs: a service may do only what it declares."""

from typing import Any

import msgspec
import pytest

from libs.common.contract.services import (
    CONSOLE,
    DURABLES,
    LABELER,
    METADATA,
    READER_USER,
    SERVICES,
    Durable,
    ServiceSpec,
    expand_cloud,
)
from libs.common.contract.subjects import ENRICHED_NODE, FLOW, ROOT, STREAM
from services.bootstrap.server_config import (
    SYSTEM_USER,
    build_permissions_by_user,
    build_reader_permissions,
    build_service_permissions,
    build_system_permissions,
    find_own_address,
    render_server_config,
)
from services.bootstrap.settings import BootstrapSettings

ACCOUNTS = ("prod", "staging")
SPECS = (*SERVICES, *map(expand_cloud, ACCOUNTS))
SETTINGS = BootstrapSettings(prefix="ccm", cloud_accounts=ACCOUNTS)
KEYS = {user: f"U{user.upper()}" for user in (*SETTINGS.names.users, SYSTEM_USER)}


@pytest.mark.parametrize("wiring", SPECS, ids=lambda wiring: wiring.service)
def test_what_a_service_declares_it_may_publish_and_no_other_subject_of_ours(wiring: ServiceSpec):
    ours = {
        subject for subject in build_service_permissions(wiring).allow_publish if subject.startswith(ROOT)
    }
    assert ours == set(wiring.publishes)


def test_a_service_that_declares_a_durable_may_take_and_acknowledge_its_messages():
    durable = Durable(service="metadata", name="metadata-new", filter=f"{ENRICHED_NODE}.>")
    before = set(build_service_permissions(METADATA).allow_publish)
    after = set(
        build_service_permissions(msgspec.structs.replace(METADATA, durables=(durable,))).allow_publish
    )
    assert after - before == {
        f"$JS.API.CONSUMER.INFO.{STREAM}.metadata-new",
        f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.metadata-new",
        f"$JS.ACK.{STREAM}.metadata-new.>",
    }


def test_a_service_that_follows_nothing_may_make_no_consumer():
    rights = build_service_permissions(msgspec.structs.replace(METADATA, follows=()))
    assert not [subject for subject in rights.allow_publish if "CONSUMER" in subject]


def test_the_watcher_alone_makes_stream_and_durables():
    makes = f"$JS.API.STREAM.CREATE.{STREAM}"
    assert [
        user for user, rights in build_permissions_by_user(ACCOUNTS).items() if makes in rights.allow_publish
    ] == ["watcher"]
    for durable in DURABLES:
        denied = f"$JS.API.CONSUMER.CREATE.{STREAM}.{durable.name}.>"
        assert [
            user
            for user, rights in build_permissions_by_user(ACCOUNTS).items()
            if denied not in rights.deny_publish
        ] == ["watcher"]


def test_whoever_speaks_outside_the_flow_does_not_read_there_what_it_says():
    """Else the server would publish its words, as an answer, to any subject that it names."""
    for wiring in SPECS:
        rights = build_service_permissions(wiring).allow_publish
        reading = [subject for subject in rights if "DIRECT.GET" in subject]
        assert reading == [f"$JS.API.DIRECT.GET.{STREAM}.{FLOW}.>"]
        outside = [each.removesuffix(">") for each in wiring.follows if each != f"{FLOW}.>"]
        assert not [own for own in wiring.publishes if own.startswith(tuple(outside))]
        consumers = [subject for subject in rights if ".CONSUMER.CREATE." in subject and ".*." in subject]
        assert [subject.partition(".*.")[2] for subject in consumers] == list(wiring.follows)


def test_the_key_of_an_account_publishes_about_that_account_alone():
    assert expand_cloud("prod").publishes == ("talosccm.v1.cloud.prod.>", "talosccm.v1.pulse.cloud-prod.>")
    assert {"cloud-prod", "cloud-staging"} < {*build_permissions_by_user(ACCOUNTS)}
    assert "cloud" not in build_permissions_by_user(ACCOUNTS)


def test_who_only_looks_says_nothing():
    for user in (CONSOLE.service, READER_USER):
        assert all(subject.startswith("$JS.API.") for subject in build_reader_permissions(user).allow_publish)


def test_the_system_key_can_do_one_thing():
    assert build_system_permissions().allow_publish == ("$SYS.REQ.SERVER.*.RELOAD",)


def test_everybody_hears_an_inbox_of_their_own_alone():
    heard = [
        rights.allow_subscribe
        for rights in (*build_permissions_by_user(ACCOUNTS).values(), build_system_permissions())
    ]
    assert len(set(heard)) == len(heard)
    assert all(len(subjects) == 1 and subjects[0].startswith("_INBOX_") for subjects in heard)


def render(**changes: object) -> dict[str, Any]:
    """The configuration of this server, as nats-server reads it: without the comment at its beginning."""
    comment, _, text = render_server_config(msgspec.structs.replace(SETTINGS, **changes), KEYS).partition(
        "\n"
    )
    assert comment.startswith("# ")
    config: dict[str, Any] = msgspec.json.decode(text)
    return config


def test_each_user_has_its_key_and_its_rights():
    users = {user["nkey"]: user["permissions"] for user in render()["accounts"]["TALOSCCM"]["users"]}
    assert users.keys() == {key for user, key in KEYS.items() if user != SYSTEM_USER}
    rights = build_service_permissions(LABELER)
    assert users[KEYS["labeler"]] == {
        "publish": {"allow": list(rights.allow_publish), "deny": list(rights.deny_publish)},
        "subscribe": {"allow": list(rights.allow_subscribe)},
    }


def test_a_key_that_is_missing_is_no_configuration_at_all():
    with pytest.raises(KeyError):
        render_server_config(SETTINGS, {user: key for user, key in KEYS.items() if user != "csr"})


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
