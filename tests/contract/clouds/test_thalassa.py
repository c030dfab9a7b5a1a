"""What only Thalassa Cloud has: VPCs, organisations and projects, deleted machines, and access tokens."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from libs.clouds.instances import Anchor, Deleted, Instance, NotFound, Unanswered
from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.clouds.api_server import SimApiServer, SimRequest
from libs.testbed.clouds.thalassa.organisation import SimOrganisation
from libs.testbed.clouds.thalassa.server import SimThalassa
from tests.contract.clouds.accounts import make_client

TOKEN = "token-of-web"
PERSONAL = f"personalAccessToken: {TOKEN}"
CLIENT = ("client +1", "secret+%/of:web")
CLIENT_KEYS = f"clientID: '{CLIENT[0]}', clientSecret: '{CLIENT[1]}'"


class Account:
    """An organisation, and our client of it with a config file."""

    def __init__(self, server: SimApiServer[SimThalassa], folder: Path) -> None:
        self.server = server
        self.cloud = server.cloud
        self.organisation: SimOrganisation = self.cloud.add_organisation("acme", TOKEN)
        self.cloud.clients[CLIENT] = self.organisation
        self.file = folder / "config.yaml"

    def write(self, credentials: str = PERSONAL, **keys: str) -> None:
        fields = {"organisation": "acme", "endpoint": self.server.endpoint} | keys
        lines = [f"{key}: {value}" for key, value in fields.items()]
        self.file.write_text("\n".join([*lines, f"cloudCredentials: {{{credentials}}}"]))

    @property
    def paths(self) -> list[str]:
        return [f"{request.method} {request.path}" for request in self.server.requests]

    @asynccontextmanager
    async def open(
        self, credentials: str = f"personalAccessToken: {TOKEN}", **keys: str
    ) -> AsyncIterator[Any]:
        self.write(credentials, **keys)
        ours = make_client("thalassa", self.file, endpoint=self.server.endpoint)
        try:
            yield ours
        finally:
            await ours.close()


@pytest.fixture
async def account(tmp_path: Path) -> AsyncIterator[Account]:
    async with SimApiServer.start(SimThalassa()) as server:
        yield Account(server, tmp_path)


@pytest.mark.parametrize(
    ("status", "state", "is_deleted"),
    [("deleted", "deleted", True), ("deleted", "running", False), ("deleting", "deleted", False)],
)
async def test_a_deleted_machine_is_none_only_where_the_cloud_is_of_one_mind(
    account: Account, status: str, state: str, is_deleted: bool
):
    machine = account.organisation.add_machine("web-1")
    account.organisation.set_state(machine, status, state)
    async with account.open() as ours:
        found = await ours.get_instance(machine)
        assert isinstance(found, Deleted if is_deleted else Instance)
        listed = () if is_deleted else (found,)
        assert await ours.list_instances() == await ours.find_by_name("web-1") == listed


async def test_a_machine_that_the_api_finds_by_its_slug_is_not_the_one_asked_for(account: Account):
    account.organisation.add_machine("web-1")
    async with account.open() as ours:
        assert isinstance(await ours.get_instance("web-1"), Unanswered)


async def test_the_name_or_the_slug_of_a_machine_is_the_name_of_a_node(account: Account):
    machine = account.organisation.add_machine("web-1")
    account.organisation.tables["machines"][machine]["name"] = "Web 1"
    async with account.open() as ours:
        for name in ("web-1", "Web 1"):
            (found,) = await ours.find_by_name(name)
            assert (found.id, found.name) == (machine, name)
        (listed,) = await ours.list_instances()
        assert listed.name == "web-1"


@pytest.mark.parametrize("ignores_filters", [False, True])
async def test_with_a_vpc_machines_of_others_are_in_no_list(account: Account, ignores_filters: bool):
    account.cloud.ignores_filters = ignores_filters
    vpc, other = account.organisation.add_vpc("net"), account.organisation.add_vpc("other")
    mine = account.organisation.add_machine("web-1", vpc=vpc)
    theirs = account.organisation.add_machine("web-1", vpc=other)
    async with account.open(vpcIdentity=other) as ours:
        assert [each.id for each in await ours.list_instances()] == [theirs]
        assert [each.id for each in await ours.find_by_name("web-1")] == [theirs]
        assert isinstance(await ours.get_instance(mine), Instance)
        assert await ours.find_anchor() == Anchor("vpc", f"{other}@acme")
    assert account.server.requests[0].query == {"vpc": other}


async def test_a_list_with_a_machine_that_cannot_be_read_is_no_answer(account: Account):
    account.organisation.add_machine("web-1")
    account.organisation.add_machine("web-2", addresses=["10.0.1"])
    async with account.open() as ours:
        assert isinstance(await ours.list_instances(), Unanswered)
        assert isinstance(await ours.find_by_name("web-2"), Unanswered)


async def test_a_vpc_that_other_projects_see_is_an_anchor_of_one(account: Account):
    vpc = account.organisation.add_vpc()
    machine = account.organisation.add_machine("web-1", project="blue")
    async with account.open(project="blue") as ours:
        anchor = await ours.find_anchor()
        assert anchor == Anchor("vpc", f"{vpc}@acme/blue")
        assert await ours.get_anchor(anchor) == anchor
        assert isinstance(await ours.get_instance(machine), Instance)
        account.write(project="red")
        assert await ours.get_instance(machine) == NotFound()
        assert await ours.get_anchor(anchor) == NotFound()
        assert await ours.find_anchor() == Anchor("vpc", f"{vpc}@acme/red")
    projects = [each.headers.get("X-Project-Identity") for each in account.server.requests]
    assert projects == ["blue"] * 3 + ["red"] * 3


async def test_another_organisation_finds_nothing(account: Account):
    machine = account.organisation.add_machine("web-1")
    account.cloud.add_organisation("other")
    async with account.open(organisation="other") as ours:
        answer = await ours.get_instance(machine)
    assert isinstance(answer, Unanswered)
    assert answer.outcome == "forbidden"


@pytest.mark.parametrize("in_body", [False, True])
async def test_client_credentials_are_exchanged_once(account: Account, in_body: bool):
    account.cloud.takes_secret_in_body = in_body
    machine = account.organisation.add_machine("web-1")
    async with account.open(CLIENT_KEYS) as ours:
        for _ in range(3):
            assert isinstance(await ours.get_instance(machine), Instance)
        assert ours.credential.generation == 1
    exchanges = ["POST /oidc/token"] * (2 if in_body else 1)
    assert account.paths == exchanges + [f"GET /v1/machines/{machine}"] * 3


@pytest.mark.parametrize(("lifetime", "exchanges"), [(3600, 1), (120, 1), (0, 3)])
async def test_an_access_token_is_renewed_before_its_end_by_the_same_credential(
    account: Account, lifetime: int, exchanges: int
):
    account.cloud.token_seconds = lifetime
    async with account.open(CLIENT_KEYS) as ours:
        for _ in range(3):
            assert await ours.list_instances() == ()
        assert ours.credential.generation == 1
    assert account.paths.count("POST /oidc/token") == exchanges


async def test_an_access_token_that_is_rejected_is_renewed(account: Account):
    async with account.open(CLIENT_KEYS) as ours:
        assert await ours.list_instances() == ()
        account.cloud.access_tokens.clear()
        assert isinstance(await ours.list_instances(), Unanswered)
        assert await ours.list_instances() == ()
        assert ours.credential.generation == 1
    assert account.paths.count("POST /oidc/token") == 2


async def test_another_client_is_another_generation_with_a_token_of_its_own(account: Account):
    account.cloud.clients["other", "secret"] = account.organisation
    async with account.open(CLIENT_KEYS) as ours:
        await ours.list_instances()
        account.write("clientID: other, clientSecret: secret")
        await ours.list_instances()
        assert ours.credential.generation == 2
        account.write()
        await ours.list_instances()
        assert ours.credential.generation == 3
    assert account.paths.count("POST /oidc/token") == 2
    tokens = [each.token for each in account.server.requests if each.method == "GET"]
    assert len(set(tokens)) == 3
    assert tokens[-1] == TOKEN


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        ("unauthorized", "unauthorized"),
        ("lying_not_found", "malformed"),
        ("proxy_not_found", "malformed"),
        ("proxy_bad_gateway", "server_error"),
        ("service_error", "server_error"),
        ("login_page", "malformed"),
        ("redirect", "malformed"),
        ("cut_off", "unreachable"),
    ],
)
async def test_without_an_access_token_nothing_is_asked(account: Account, fault: str, outcome: str):
    account.server.add_fault(fault, path="/oidc/token")
    async with account.open(CLIENT_KEYS) as ours:
        answer = await ours.get_instance("vm-5")
    assert isinstance(answer, Unanswered)
    assert answer.outcome == outcome
    assert not {CLIENT[0], CLIENT[1]} & set(answer.reason.split())
    assert set(account.paths) == {"POST /oidc/token"}


async def test_a_429_of_the_token_endpoint_silences_the_client(account: Account):
    account.server.add_fault("rate_limited", path="/oidc/token", count=1)
    async with account.open(CLIENT_KEYS) as ours:
        outcomes = [(await ours.get_instance("vm-5")).outcome for _ in range(2)]
    assert outcomes == ["rate_limited", "held_back"]
    assert account.paths == ["POST /oidc/token"]


async def test_a_file_that_changes_while_a_token_is_fetched_is_another_generation(account: Account):
    account.cloud.clients["other", "secret"] = account.organisation
    async with account.open(CLIENT_KEYS) as ours:

        def replace_client(request: SimRequest) -> None:
            if request.path == "/oidc/token":
                account.write("clientID: other, clientSecret: secret")

        account.server.before_answer = replace_client
        await ours.list_instances()
        account.server.before_answer = lambda request: None
        await ours.list_instances()
        assert ours.credential.generation == 2
    assert account.paths.count("POST /oidc/token") == 2


async def test_a_config_file_for_another_endpoint_sends_nothing(account: Account):
    async with account.open(endpoint="https://api.example") as ours:
        answer = await asyncio.wait_for(ours.find_anchor(), HANG_SECONDS)
    assert isinstance(answer, Unanswered)
    assert "api.example" not in answer.reason
    assert account.server.requests == []
