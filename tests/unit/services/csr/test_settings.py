"""Settings of csr."""

from pathlib import Path

import pytest

from libs.common.contract.controllers import CSR_APPROVAL
from libs.common.settings.help_text import format_help
from libs.common.settings.read_settings import SettingsError, list_options, read_settings
from services.csr.settings import CsrSettings
from services.metadata.settings import MetadataSettings


def read(*arguments: str) -> CsrSettings:
    return read_settings([CsrSettings], arguments, {}).get(CsrSettings)


def test_the_policy_is_what_the_flags_say():
    policy = read(
        "--csr-allowed-networks=10.0.0.0/8,fd00::/8", "--csr-min-expiration=1h", "--csr-max-expiration=24h"
    ).policy
    assert policy.allowed_networks == ("10.0.0.0/8", "fd00::/8")
    assert (policy.min_expiration_seconds, policy.max_expiration_seconds) == (3600, 86400)


def test_without_flags_nothing_is_limited_and_no_network_is_allowed():
    policy = read().policy
    assert policy.allowed_networks == ()
    assert policy.min_expiration_seconds is policy.max_expiration_seconds is None


def test_one_command_line_gives_csr_and_metadata_the_same_period_and_mode():
    arguments = ["--metadata-republish-interval=2m", "--without-talos"]
    reading = read_settings([MetadataSettings, CsrSettings], arguments, {})
    for settings in (reading.get(MetadataSettings), reading.get(CsrSettings)):
        assert (settings.republish_interval_seconds, settings.without_talos) == (120.0, True)
    assert MetadataSettings().republish_interval_seconds == CsrSettings().republish_interval_seconds == 300.0
    assert reading.warnings == ()


def test_whose_nodes_are_ours_stands_in_the_file_and_a_mistake_in_it_stops_the_start(tmp_path: Path):
    file = tmp_path / "ccm.yaml"
    file.write_text("ownership: {controllers: [{name: node-csr-approval, providerIDSchemes: [talos]}]}")
    settings = read(f"--cloud-config={file}")
    assert settings.cloud_config == file
    assert settings.file.ownership.for_controller(CSR_APPROVAL).provider_id_schemes == ("talos",)
    file.write_text("ownership: {providerIDSchemes: []}")
    with pytest.raises(SettingsError, match="must have at least one entry"):
        read(f"--cloud-config={file}")


@pytest.mark.parametrize(
    ("argument", "told"),
    [
        ("--csr-allowed-networks=10.0.0.5/8", '"10.0.0.5/8" is not a network'),
        ("--csr-allowed-networks=everywhere", '"everywhere" is not a network'),
        ("--csr-min-expiration=1s", "at least 10m0s"),
        ("--csr-in-flight=0", "at least 1"),
    ],
)
def test_what_cannot_be_obeyed_is_a_mistake(argument: str, told: str):
    with pytest.raises(SettingsError, match=told):
        read(argument)


def test_limits_that_leave_nothing_are_a_mistake():
    with pytest.raises(SettingsError, match="csr would deny every request"):
        read("--csr-min-expiration=24h", "--csr-max-expiration=1h")


def test_the_help_of_csr_lists_the_service_networks_under_a_heading_that_names_certificates():
    lines = format_help("csr", "Approves.", list_options(CsrSettings)).splitlines()
    assert "Pod CIDRs:" not in lines
    heading = lines.index("Service networks (for pod CIDRs and kubelet serving certificates):")
    assert "--service-cluster-ip-range" in lines[heading + 1]
