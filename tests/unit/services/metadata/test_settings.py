"""Flags that contradict each other."""

import pytest

from libs.common.settings.read_settings import SettingsError, read_settings
from services.ipam.settings import IpamSettings
from services.metadata.settings import MetadataSettings


@pytest.mark.parametrize(
    "kinds", [[MetadataSettings], [MetadataSettings, IpamSettings]], ids=["alone", "in one"]
)
@pytest.mark.parametrize("asked", ["--allocate-node-cidrs", "--controllers=*,node-ipam-controller"])
def test_pod_cidrs_without_talos_are_rejected_at_the_start(kinds: list, asked: str):
    name = asked.partition("=")[0]
    with pytest.raises(SettingsError, match=f"--without-talos and {name}.* before machines report"):
        read_settings(kinds, ["--without-talos", asked], {})


@pytest.mark.parametrize(
    "said",
    [
        ["--without-talos"],
        ["--without-talos", "--allocate-node-cidrs=false"],
        ["--without-talos", "--allocate-node-cidrs", "--controllers=*,-node-ipam-controller"],
        ["--allocate-node-cidrs"],
    ],
    ids=str,
)
def test_each_of_the_two_flags_alone_is_valid(said: list[str]):
    assert not read_settings([MetadataSettings], said, {}).get(MetadataSettings).problems()
