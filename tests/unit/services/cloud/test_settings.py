"""Settings of cloud: accounts, and names of the native controller."""

import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from libs.clouds.instances import Anchor
from libs.common.clocks import utc_now
from libs.common.contract.instances import CLOUD_PROVIDERS, get_provider
from libs.common.contract.services import CLOUD
from libs.common.service.run_process import run_process, select_definitions
from libs.common.settings.process_settings import ProcessSettings
from libs.common.settings.read_settings import SettingsError, read_settings
from services.cloud.adapters import ADAPTERS
from services.cloud.service import (
    CLOUD_DEFINITION,
    build_cloud,
    expand_definition,
    require_one_account,
)
from services.cloud.settings import CloudAccountSettings, CloudSettings
from services.definitions import load_definitions

TOKEN_FILE = "--cloud-credential-file=/etc/clouds/{account}/token"


def read(*arguments: str, environment: Mapping[str, str] | None = None) -> CloudSettings:
    return read_settings([CloudSettings], arguments, environment or {}).get(CloudSettings)


def test_an_account_has_a_credential_of_its_own_and_perhaps_an_anchor():
    settings = read("--cloud-account=hcloud/prod/network/4711", "--cloud-account=hcloud/b-2", TOKEN_FILE)
    accounts = [run.spec.service for run in expand_definition(settings)]
    assert accounts == ["cloud-prod", "cloud-b-2"]
    assert read("--cloud-account=hcloud/prod/network/4711", TOKEN_FILE).account == CloudAccountSettings(
        provider="hcloud",
        name="prod",
        credential=Path("/etc/clouds/prod/token"),
        anchor=Anchor("network", "4711"),
    )


@pytest.mark.parametrize(
    ("entry", "network"),
    [("hcloud/prod/4711", "4711"), ("hcloud/prod", ""), ("hcloud/test", None), ("openstack/prod/4711", None)],
)
def test_an_account_supplies_metadata_by_its_own_entry(entry: str, network: str | None):
    settings = read("--cloud-account=hcloud/prod", TOKEN_FILE, f"--cloud-metadata-accounts={entry}")
    found = settings.metadata_account
    assert (None if found is None else found.network) == network


def test_the_names_of_the_native_controller_are_accepted():
    environment = {"HCLOUD_TOKEN": "secret", "HCLOUD_ENDPOINT": "https://cloud.example/v1"}
    account = read("--cloud-account=hcloud/prod", environment=environment).account
    assert (account.credential, account.endpoint) == ("secret", "https://cloud.example/v1")
    account = read("--cloud-account=hcloud/prod", environment={"HCLOUD_TOKEN_FILE": "/t"}).account
    assert account.credential == Path("/t")


@pytest.mark.parametrize(
    ("arguments", "token", "problem"),
    [
        (["hcloud"], "", "--cloud-account=hcloud: the form is provider/account or provider/account/kind/id"),
        (["hcloud/prod/network"], "", "the form is provider/account"),
        (["hcloud/prod/network/"], "", "the form is provider/account"),
        (["aws/prod"], "", "--cloud-account=aws/prod: unknown provider aws; known are hcloud"),
        (["hcloud/Prod"], "", "the name of an account has 1 to 32 lower-case letters"),
        (["hcloud/-prod"], "", "the first and the last no hyphen"),
        ([f"hcloud/{'a' * 33}"], "", "1 to 32"),
        (["hcloud/prod", "hcloud/prod/network/1"], "", "--cloud-account: prod is there twice"),
        (["hcloud/prod", TOKEN_FILE], "secret", "--cloud-credential-file and HCLOUD_TOKEN are both set"),
        (["hcloud/prod", "hcloud/other"], "secret", "HCLOUD_TOKEN belongs to one account"),
        (["hcloud/a", "hcloud/b", "--cloud-credential-file=/t"], "", "needs {account} for several accounts"),
        (["hcloud/prod"], "", "--cloud-credential-file is not set, and HCLOUD_TOKEN neither"),
        (["hcloud/a", "thalassa/b", "--cloud-endpoint=https://a.example"], "", "belongs to one provider"),
    ],
)
def test_a_mistake_is_named_with_its_account(arguments: list[str], token: str, problem: str):
    flags = [each if each.startswith("--") else f"--cloud-account={each}" for each in arguments]
    with pytest.raises(SettingsError) as raised:
        read(*flags, environment={"HCLOUD_TOKEN": token})
    assert problem in str(raised.value)
    assert "secret" not in str(raised.value)


def test_all_in_one_runs_cloud_only_with_an_account():
    definitions = load_definitions()
    kinds: list[type[msgspec.Struct]] = [*(run.settings for run in definitions), ProcessSettings]

    def select(*arguments: str) -> list[str]:
        parsed = read_settings(kinds, arguments, {"HCLOUD_TOKEN_FILE": "/etc/{account}"})
        return [run.spec.service for run in select_definitions(definitions, parsed)]

    assert CLOUD.service not in select()
    assert select("--cloud-account=hcloud/a", "--cloud-account=hcloud/b")[-1] == CLOUD.service


@pytest.mark.parametrize(
    ("accounts", "problem"), [((), "is not set"), (("hcloud/a", "hcloud/b"), "names several accounts")]
)
def test_a_process_of_its_own_has_one_account(
    accounts: tuple[str, ...],
    problem: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    flags = [f"--cloud-account={each}" for each in accounts]
    monkeypatch.setattr(sys, "argv", ["cloud", *flags, TOKEN_FILE])
    assert run_process(CLOUD_DEFINITION, conflicts=require_one_account) == 2
    assert f"python -m services.cloud: --cloud-account {problem}" in capsys.readouterr().err


def test_an_endpoint_in_clear_text_is_refused_with_the_name_of_the_account():
    settings = read("--cloud-account=hcloud/prod", TOKEN_FILE, "--cloud-endpoint=http://cloud.example")
    with pytest.raises(SettingsError, match=r"cloud account prod: the endpoint .* is not https"):
        build_cloud(settings, utc_now)


def test_each_provider_has_an_adapter():
    assert list(ADAPTERS) == list(CLOUD_PROVIDERS)
    for provider, scheme in CLOUD_PROVIDERS.items():
        cloud = build_cloud(read(f"--cloud-account={provider}/prod", TOKEN_FILE), utc_now).instances
        path = "/0c1e4a52-6c7b-4a2e-9d52-1f0e6a5c7b11" if provider == "openstack" else "7"
        assert cloud.parse_provider_id(f"{scheme}://{path}") == path.removeprefix("/")
        assert get_provider(f"{scheme}://{path}") == provider, "lifecycle knows its providerIDs"
