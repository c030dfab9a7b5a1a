"""Which instance a machine names: only where Talos itself does not know the cloud."""

import msgspec
import pytest

from libs.common.contract.instance_metadata import find_named_instance, parse_metadata_accounts
from tests.named_machines import make_hetzner_facts


@pytest.mark.parametrize("platform", ["metal", "nocloud"])
def test_a_server_names_itself_by_its_serial_number(platform: str):
    assert find_named_instance("hcloud", make_hetzner_facts("4711", platform=platform)) == "hcloud://4711"


@pytest.mark.parametrize(
    "facts",
    [
        make_hetzner_facts(""),
        make_hetzner_facts("047"),
        make_hetzner_facts("4711 "),
        make_hetzner_facts("S4711"),
        make_hetzner_facts("9" * 20),
        make_hetzner_facts("4711", manufacturer="Supermicro"),
        make_hetzner_facts("4711", platform="hcloud"),
        make_hetzner_facts("4711", platform="nocloud", provider_id="proxmox://region-1/100"),
        msgspec.structs.replace(make_hetzner_facts("4711"), system=None),
    ],
    ids=[
        "no-serial", "leading-zero", "space", "letters", "too-long", "other-maker", "known-platform",
        "own-provider-id", "not-queried",
    ],
)  # fmt: skip
def test_another_machine_names_none(facts):
    assert find_named_instance("hcloud", facts) == ""


def test_accounts_have_their_provider():
    assert parse_metadata_accounts(["hcloud/prod", "hcloud/test"]) == {"prod": "hcloud", "test": "hcloud"}


@pytest.mark.parametrize("value", ["prod", "hcloud/", "/prod", "aws/prod", "hcloud/test"])
def test_another_text_is_no_account(value: str):
    with pytest.raises(ValueError, match="provider/account"):
        parse_metadata_accounts(["hcloud/test", value])
