"""Which instance a machine names: only where Talos itself does not know the cloud."""

import msgspec
import pytest

from libs.common.contract.instance_metadata import (
    METADATA_PROVIDERS,
    MetadataAccount,
    find_named_instance,
    parse_metadata_accounts,
)
from libs.common.contract.machine import SystemInformation
from tests.named_machines import HCLOUD, NAMED_CLOUDS, OPENSTACK, NamedCloud

CLOUDS = pytest.mark.parametrize("cloud", NAMED_CLOUDS.values(), ids=NAMED_CLOUDS)
UUID = OPENSTACK.own


def make_nova(uuid: str = UUID, **fields: str) -> SystemInformation:
    return msgspec.structs.replace(OPENSTACK.make_system(uuid), **fields)


def test_each_provider_is_tested():
    assert list(NAMED_CLOUDS) == list(METADATA_PROVIDERS)


@CLOUDS
@pytest.mark.parametrize("platform", ["metal", "nocloud"])
def test_a_server_names_itself(cloud: NamedCloud, platform: str):
    assert find_named_instance(cloud.provider, cloud.make_facts(platform=platform)) == cloud.provider_id


@pytest.mark.parametrize(
    "system",
    [make_nova(UUID.upper()), make_nova(product_name="OpenStack Compute", manufacturer="RDO")],
    ids=["upper-case", "another-distribution"],
)
def test_a_server_of_nova_is_known_by_its_product(system: SystemInformation):
    facts = msgspec.structs.replace(OPENSTACK.make_facts(), system=system)
    assert find_named_instance("openstack", facts) == OPENSTACK.provider_id


@CLOUDS
def test_a_machine_whose_cloud_is_known_names_none(cloud: NamedCloud):
    for facts in (
        cloud.make_facts(platform=cloud.provider),
        cloud.make_facts(platform="nocloud", provider_id="proxmox://region-1/100"),
        msgspec.structs.replace(cloud.make_facts(), system=None),
    ):
        assert find_named_instance(cloud.provider, facts) == ""


@pytest.mark.parametrize(
    ("provider", "system"),
    [
        ("hcloud", HCLOUD.make_system("")),
        ("hcloud", HCLOUD.make_system("047")),
        ("hcloud", HCLOUD.make_system("4711 ")),
        ("hcloud", HCLOUD.make_system("S4711")),
        ("hcloud", HCLOUD.make_system("9" * 20)),
        ("hcloud", SystemInformation(manufacturer="Supermicro", serial_number="4711")),
        ("hcloud", make_nova(serial_number="4711")),
        ("openstack", make_nova("")),
        ("openstack", make_nova(f"{UUID} ")),
        ("openstack", make_nova(UUID.replace("-", ""))),
        ("openstack", make_nova("03000200-0400-0500-0006-000700080009")),
        ("openstack", make_nova("00000000-0000-0000-0000-000000000001")),
        ("openstack", make_nova(product_name="KVM")),
        ("openstack", make_nova(product_name="Standard PC (Q35 + ICH9, 2009)", manufacturer="QEMU")),
        ("openstack", msgspec.structs.replace(HCLOUD.make_system("4711"), uuid=UUID)),
    ],
    ids=[
        "no-serial", "leading-zero", "space", "letters", "too-long", "other-maker", "other-cloud",
        "no-uuid", "space-after-uuid", "no-hyphens", "placeholder", "filler", "other-product", "qemu",
        "hetzner-with-a-uuid",
    ],
)  # fmt: skip
def test_another_machine_names_none(provider: str, system: SystemInformation):
    facts = msgspec.structs.replace(HCLOUD.make_facts(), system=system)
    assert find_named_instance(provider, facts) == ""


def test_accounts_have_their_provider_and_perhaps_a_network():
    assert parse_metadata_accounts(["hcloud/prod/4711", "hcloud/test", "openstack/lab/a/b"]) == {
        "prod": MetadataAccount(provider="hcloud", network="4711"),
        "test": MetadataAccount(provider="hcloud"),
        "lab": MetadataAccount(provider="openstack", network="a/b"),
    }


@pytest.mark.parametrize(
    "value", ["prod", "hcloud/", "/prod", "hcloud//1", "hcloud/prod/", "thalassa/prod", "hcloud/test/1"]
)
def test_another_text_is_no_account(value: str):
    with pytest.raises(ValueError, match="provider/account"):
        parse_metadata_accounts(["hcloud/test", value])
