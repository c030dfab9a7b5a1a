"""What a response of Thalassa Cloud means: a table of responses that mean nothing."""

from typing import Any

import msgspec
import pytest

from libs.clouds.http_reader import HttpResponse
from libs.clouds.instances import Deleted, Instance, InstanceAddress, NotFound, Unanswered
from libs.clouds.thalassa.config_file import ThalassaConfig, read_config
from libs.clouds.thalassa.responses import (
    AccessToken,
    Machine,
    Vpc,
    build_instance,
    read_access_token,
    read_item,
    read_list,
)
from libs.testbed.clouds.thalassa.objects import make_machine, make_organisation, make_vpc

VPC = make_vpc("vpc-1", "net", make_organisation("o-1", "acme"))


def respond(status: int, document: Any) -> HttpResponse:
    return HttpResponse(status, {}, msgspec.json.encode(document))


def build(document: dict[str, Any]) -> Instance | Deleted | Unanswered:
    return build_instance(msgspec.convert(document, Machine))


MISSING = {"message": "machine token-abc not found"}


@pytest.mark.parametrize(
    ("response", "outcome"),
    [
        (respond(404, MISSING), None),
        (respond(404, {"message": ""}), "malformed"),
        (respond(404, {"message": 404}), "malformed"),
        (respond(404, {"error": "not_found"}), "malformed"),
        (respond(404, {}), "malformed"),
        (respond(404, "not found"), "malformed"),
        (HttpResponse(404, {}, b"<html>not found</html>"), "malformed"),
        (HttpResponse(404, {}, b""), "malformed"),
        (respond(410, MISSING), "malformed"),
        (respond(400, MISSING), "malformed"),
        (respond(200, MISSING), "malformed"),
        (respond(200, None), "malformed"),
        (respond(201, make_machine("vm-5", "a", VPC)), "malformed"),
        (respond(500, MISSING), "server_error"),
        (respond(401, MISSING), "unauthorized"),
        (respond(403, MISSING), "forbidden"),
        (respond(429, MISSING), "rate_limited"),
    ],
)
def test_only_a_404_with_a_message_of_the_api_says_that_there_is_no_object(
    response: HttpResponse, outcome: str | None
):
    answer = read_item(response, "vm-5", Machine, organisation="acme")
    listed = read_list(response, Machine, organisation="acme") if response.body != b"null" else answer
    assert isinstance(listed, Unanswered)
    if outcome is None:
        assert answer == NotFound()
        return
    assert isinstance(answer, Unanswered)
    assert answer.outcome == outcome
    assert "abc" not in answer.reason  # the API's text may repeat what was sent


@pytest.mark.parametrize(
    ("status", "states", "answer"),
    [
        ("deleted", {"state": "deleted"}, Deleted()),
        ("deleted", {"State": "deleted"}, Deleted()),
        ("deleted", {}, Deleted()),
        ("deleted", {"state": ""}, Deleted()),
        ("deleted", {"state": None, "State": None}, Deleted()),
        ("deleted", {"state": None, "State": "running"}, False),
        ("deleted", {"state": "running"}, False),
        ("deleted", {"State": "running"}, False),
        ("deleted", {"state": "deleted", "State": "running"}, False),
        ("deleted", {"state": "deleting"}, False),
        ("deleting", {"state": "deleted"}, False),
        ("running", {"state": "deleted"}, False),
        ("Deleted", {"state": "deleted"}, False),
        ("deleting", {"state": "deleting"}, False),
        ("stopped", {"state": "running"}, True),
        ("running", {"state": "stopped"}, False),
        ("unknown", {"state": "running"}, False),
    ],
)
def test_a_machine_is_deleted_only_by_both_of_its_states(
    status: str, states: dict[str, Any], answer: Deleted | bool
):
    machine = make_machine("vm-5", "web-1", VPC, status=status)
    built = build({key: value for key, value in machine.items() if key != "state"} | states)
    if isinstance(answer, Deleted):
        assert built == answer
    else:
        assert isinstance(built, Instance)
        assert built.is_shut_down == answer


WITHOUT = [{"identity": None}, {"name": None}, {"slug": None}, {"status": None}]
WRONG = [
    {"identity": 5},
    {"identity": ""},
    {"identity": "vm 5"},
    {"identity": "../vm"},
    {"slug": ""},
    {"status": "running"},
    {"status": {}},
    {"status": {"status": ""}},
    {"state": 1},
    {"vpc": {}},
    {"vpc": {"identity": "vpc-1", "cloudRegion": {}}},
    {"interfaces": [{}]},
    {"interfaces": [{"ipAddresses": "10.0.0.1"}]},
]


@pytest.mark.parametrize("fields", [*WITHOUT, *WRONG], ids=str)
def test_a_machine_with_a_missing_or_wrong_field_is_no_answer(fields: dict[str, Any]):
    machine = make_machine("vm-5", "web-1", VPC) | fields
    machine = {name: value for name, value in machine.items() if fields not in WITHOUT or value is not None}
    for answer in (
        read_item(respond(200, machine), "vm-5", Machine, organisation="acme"),
        read_list(respond(200, [make_machine("vm-4", "web-0", VPC), machine]), Machine, organisation="acme"),
    ):
        assert isinstance(answer, Unanswered)
        assert answer.outcome == "malformed"


@pytest.mark.parametrize("key", make_machine("vm-5", "web-1", VPC))
def test_null_is_an_absent_key_or_no_answer(key: str):
    machine = make_machine("vm-5", "web-1", VPC)
    without = {name: value for name, value in machine.items() if name != key}
    absent, null = (
        read_item(respond(200, each), "vm-5", Machine, organisation="acme")
        for each in (without, machine | {key: None})
    )
    assert null == absent or (isinstance(absent, Unanswered) and isinstance(null, Unanswered))


@pytest.mark.parametrize("identity", ["vm-55", "vm-", "VM-5", "web-1"])
def test_a_machine_of_another_identity_is_no_answer(identity: str):
    assert isinstance(
        read_item(respond(200, make_machine("vm-5", "web-1", VPC)), identity, Machine, organisation="acme"),
        Unanswered,
    )


@pytest.mark.parametrize(
    ("organisation", "is_ours"),
    [("acme", True), ("o-1", True), ("other", False), ("o-2", False), ("Acme", False), ("", False)],
)
def test_an_object_of_another_organisation_is_no_answer(organisation: str, *, is_ours: bool):
    for item, document in ((Machine, make_machine("vm-5", "web-1", VPC)), (Vpc, VPC)):
        identity = document["identity"]
        one = read_item(respond(200, document), identity, item, organisation=organisation)
        listed = read_list(respond(200, [document]), item, organisation=organisation)
        assert isinstance(one, item) == is_ours
        assert isinstance(listed, tuple) == is_ours


@pytest.mark.parametrize("document", [{}, {"machines": []}, "", [[]], [None], 5], ids=str)
def test_what_is_no_list_is_no_answer(document: Any):
    assert isinstance(read_list(respond(200, document), Machine, organisation="acme"), Unanswered)


def test_an_empty_list_may_be_null_as_in_go():
    assert (
        read_list(respond(200, None), Machine, organisation="acme")
        == read_list(respond(200, []), Machine, organisation="acme")
        == ()
    )


def test_an_identity_twice_is_no_list():
    answer = read_list(respond(200, [{"identity": "vpc-1"}, {"identity": "vpc-1"}]), Vpc, organisation="acme")
    assert answer == Unanswered("malformed", "a Vpc is listed twice")


def test_an_instance_has_the_values_of_the_clouds_own_controller():
    built = build(make_machine("vm-5", "web-1", VPC, addresses=["10.0.1.7", "fd00::7"]))
    assert built == Instance(
        id="vm-5",
        name="web-1",
        is_shut_down=False,
        region="nl-01",
        zone="nl-01a",
        instance_type="pgp-small",
        addresses=(InstanceAddress("10.0.1.7", "vpc-1"), InstanceAddress("fd00::7", "vpc-1")),
    )


@pytest.mark.parametrize("field", ["vpc", "machineType", "availabilityZone", "interfaces"])
def test_what_the_api_may_leave_out_is_empty(field: str):
    machine = make_machine("vm-5", "web-1", VPC, addresses=["10.0.1.7"])
    without = build({key: value for key, value in machine.items() if key != field})
    assert isinstance(without, Instance)
    assert without == build(machine | {field: None})
    assert (without.addresses == ()) == (field in {"vpc", "interfaces"})


@pytest.mark.parametrize("address", ["10.0.1", "10.0.1.7/24", "", "web-1"])
def test_a_machine_with_an_address_that_is_none_is_no_answer(address: str):
    assert isinstance(build(make_machine("vm-5", "web-1", VPC, addresses=[address])), Unanswered)


TOKEN = {"access_token": "abc.def", "token_type": "Bearer", "expires_in": 3600}


@pytest.mark.parametrize(
    ("response", "outcome"),
    [
        (respond(200, TOKEN | {"access_token": ""}), "malformed"),
        (respond(200, TOKEN | {"access_token": "a b"}), "malformed"),
        (respond(200, TOKEN | {"access_token": "a\r\nX: y"}), "malformed"),
        (respond(200, TOKEN | {"token_type": "mac"}), "malformed"),
        (respond(200, TOKEN | {"expires_in": -1}), "malformed"),
        (respond(200, {"access_token": "abc.def"}), "malformed"),
        (respond(400, {"error": "invalid_client"}), "unauthorized"),
        (respond(401, {"error": "invalid_client"}), "unauthorized"),
        (respond(404, {"message": "not found"}), "malformed"),
        (respond(503, {}), "server_error"),
        (respond(429, {}), "rate_limited"),
    ],
)
def test_what_is_no_access_token_is_no_answer(response: HttpResponse, outcome: str):
    answer = read_access_token(response)
    assert isinstance(answer, Unanswered)
    assert answer.outcome == outcome
    assert "abc" not in answer.reason


@pytest.mark.parametrize(
    ("fields", "renew_after"),
    [({"expires_in": 3600}, 3540), ({"expires_in": 60}, 30), ({"expires_in": 0}, 0), ({}, 240)],
)
def test_an_access_token_is_renewed_before_its_end(fields: dict[str, int], renew_after: int):
    found = read_access_token(respond(200, {"access_token": "abc.def", "token_type": "bearer"} | fields))
    assert isinstance(found, AccessToken)
    assert (found.access_token, found.renew_after_seconds) == ("abc.def", renew_after)


ENDPOINT = "https://api.thalassa.cloud"
README = """
organisation: "acme"
project: "web"
endpoint: "https://api.thalassa.cloud/"
insecure: false
cloudCredentials:
  personalAccessToken: "secret-abc"
vpcIdentity: "vpc-1"
defaultSubnet: "subnet-1"
cluster: "one"
loadBalancer: {enabled: true, creationPollInterval: 5}
instancesV2: {enabled: true}
additionalLabels: {key1: value1}
"""


def test_the_config_file_of_the_clouds_own_controller_is_read():
    config = read_config(README, endpoint=ENDPOINT)
    assert isinstance(config, ThalassaConfig)
    assert (config.organisation, config.project, config.scope) == ("acme", "web", "acme/web")
    assert config.vpc_identity == "vpc-1"
    assert config.cloud_credentials.personal_access_token == "secret-abc"
    assert not config.cloud_credentials.is_client

    client = README.replace(
        '  personalAccessToken: "secret-abc"', "  clientID: a\n  clientSecret: secret-abc"
    )
    config = read_config(client.replace("project:", "x:").replace("endpoint:", "y:"), endpoint=ENDPOINT)
    assert isinstance(config, ThalassaConfig)
    assert (config.scope, config.cloud_credentials.client_id) == ("acme", "a")
    assert config.cloud_credentials.is_client


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("insecure: false", "insecure: true", "not supported"),
        ("https://api.thalassa.cloud/", "https://api.example", "to which requests go"),
        ('organisation: "acme"', "", "no organisation"),
        ('organisation: "acme"', 'organisation: "a\\r\\nb"', "not the config file"),
        ('personalAccessToken: "secret-abc"', "clientID: secret-abc", "neither"),
        ('personalAccessToken: "secret-abc"', 'personalAccessToken: ""', "neither"),
        ('personalAccessToken: "secret-abc"', 'personalAccessToken: "secret abc"', "not the config file"),
        ('personalAccessToken: "secret-abc"', "personalAccessToken: [secret-abc]", "not the config file"),
        ('personalAccessToken: "secret-abc"', "personalAccessToken: {secret-abc", "not the config file"),
        (README, "secret-abc", "not the config file"),
    ],
)
def test_a_file_that_names_no_account_is_no_credential(before: str, after: str, problem: str):
    text = README.replace(before, after)
    assert text != README
    found = read_config(text, endpoint=ENDPOINT)
    assert isinstance(found, str)
    assert problem in found
    assert "abc" not in found
