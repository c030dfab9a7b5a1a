"""A server's configuration follows the wiring: whoever declares more may more, and nobody else."""

from pathlib import PurePath

import msgspec
import pytest

from libs.common.bus import Durable
from libs.common.subjects import ENRICHED_NODE, FLOW, ROOT, STREAM
from libs.common.wiring import DURABLES, LABELER, METADATA, SERVICES, Wiring
from services.bootstrap.names import KEY_USERS, Names
from services.bootstrap.nats_rights import (
    SYSTEM,
    reader_rights,
    service_rights,
    system_rights,
)
from services.bootstrap.server_config import Server, rights_by_user, server_config

KEYS = {user: f"U{user.upper()}" for user in (*KEY_USERS, SYSTEM)}
SERVER = Server(
    name="ccm-nats-0",
    listen_address="0.0.0.0",
    client_port=4222,
    route_port=6222,
    monitor_port=8222,
    routes=(),
    files=PurePath("/etc/nats"),
    store_dir=PurePath("/data"),
    store_bytes=2**28,
)


@pytest.mark.parametrize("wiring", SERVICES, ids=lambda wiring: wiring.service)
def test_what_a_service_declares_it_may_publish_and_no_other_subject_of_ours(wiring: Wiring):
    ours = {subject for subject in service_rights(wiring).publish if subject.startswith(ROOT)}
    assert ours == set(wiring.publishes)


def test_a_service_that_declares_a_durable_may_take_and_acknowledge_its_messages():
    durable = Durable(service="metadata", name="metadata-new", filter=f"{ENRICHED_NODE}.>")
    before = set(service_rights(METADATA).publish)
    after = set(service_rights(msgspec.structs.replace(METADATA, durables=(durable,))).publish)
    assert after - before == {
        f"$JS.API.CONSUMER.INFO.{STREAM}.metadata-new",
        f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.metadata-new",
        f"$JS.ACK.{STREAM}.metadata-new.>",
    }


def test_a_service_that_follows_nothing_may_make_no_consumer():
    rights = service_rights(msgspec.structs.replace(METADATA, follows=()))
    assert not [subject for subject in rights.publish if "CONSUMER" in subject]


def test_the_watcher_alone_makes_stream_and_durables():
    makes = f"$JS.API.STREAM.CREATE.{STREAM}"
    assert [user for user, rights in rights_by_user().items() if makes in rights.publish] == ["watcher"]
    for durable in DURABLES:
        denied = f"$JS.API.CONSUMER.CREATE.{STREAM}.{durable.name}.>"
        assert [user for user, rights in rights_by_user().items() if denied not in rights.deny] == ["watcher"]


def test_whoever_speaks_outside_the_flow_reads_the_flow_alone():
    """Else the server would publish its words, as an answer, to any subject that it names."""
    for wiring in SERVICES:
        reading = [subject for subject in service_rights(wiring).publish if "DIRECT.GET" in subject]
        assert reading == [f"$JS.API.DIRECT.GET.{STREAM}.{FLOW}.>"]


def test_who_only_looks_says_nothing():
    assert all(subject.startswith("$JS.API.") for subject in reader_rights().publish)


def test_the_system_key_can_do_one_thing():
    assert system_rights().publish == ("$SYS.REQ.SERVER.*.RELOAD",)


def test_everybody_hears_an_inbox_of_their_own_alone():
    heard = [rights.subscribe for rights in (*rights_by_user().values(), system_rights())]
    assert len(set(heard)) == len(heard)
    assert all(len(subjects) == 1 and subjects[0].startswith("_INBOX_") for subjects in heard)


def test_each_user_has_its_key_and_its_rights_in_the_text():
    text = server_config(SERVER, KEYS)
    for user, key in KEYS.items():
        assert f"# {user}\n      {{ nkey: {key}, permissions:" in text
    for subject in service_rights(LABELER).publish:
        assert f'"{subject}"' in text


def test_a_key_that_is_missing_is_no_configuration_at_all():
    with pytest.raises(KeyError):
        server_config(SERVER, {user: key for user, key in KEYS.items() if user != "csr"})


def test_a_text_cannot_leave_its_quotes():
    odd = msgspec.structs.replace(SERVER, name='x" } system_account: TALOSCCM #')
    assert 'server_name: "x\\" } system_account: TALOSCCM #"\n' in server_config(odd, KEYS)


def test_a_lone_server_has_no_routes_and_several_prove_themselves_to_one_another():
    assert "cluster {" not in server_config(SERVER, KEYS)
    routes = Names(namespace="kube-system", prefix="ccm").routes(3)
    text = server_config(msgspec.structs.replace(SERVER, routes=routes), KEYS)
    assert '"tls://ccm-nats-2.ccm-nats-headless.kube-system.svc.cluster.local:6222"' in text
    assert "verify: true" in text.partition("cluster {")[2]
    assert "verify: true" not in text.partition("cluster {")[0]


def test_an_ipv6_address_is_told_in_brackets():
    text = server_config(msgspec.structs.replace(SERVER, listen_address="::"), KEYS)
    assert 'http: "[::]:8222"' in text
    assert msgspec.structs.replace(SERVER, listen_address="::").own_address == "127.0.0.1:4222"
    assert msgspec.structs.replace(SERVER, listen_address="fd00::1").own_address == "[fd00::1]:4222"


def test_a_probe_port_of_0_is_none():
    assert "http:" not in server_config(msgspec.structs.replace(SERVER, monitor_port=0), KEYS)
