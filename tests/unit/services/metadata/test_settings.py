"""What metadata is told together and cannot mean."""

import pytest

from libs.common.settings.read_settings import SettingsError, read_settings
from services.ipam.settings import IpamSettings
from services.metadata.settings import MetadataSettings


@pytest.mark.parametrize(
    "kinds", [[MetadataSettings], [MetadataSettings, IpamSettings]], ids=["alone", "in one"]
)
@pytest.mark.parametrize("asked", ["--allocate-node-cidrs", "--controllers=*,node-ipam-controller"])
def test_pod_cidrs_without_talos_are_a_mistake_that_is_told_at_the_start(kinds: list, asked: str):
    name = asked.partition("=")[0]
    with pytest.raises(SettingsError, match=f"--without-talos and {name}.* it would wait for ever"):
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
def test_one_without_the_other_is_none(said: list[str]):
    assert not read_settings([MetadataSettings], said, {}).get(MetadataSettings).problems()
