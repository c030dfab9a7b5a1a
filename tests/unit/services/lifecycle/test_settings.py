"""Settings of lifecycle about its Lease."""

import pytest

from libs.common.contract.services import LIFECYCLE_LEASE_NAME, WATCHER_LEASE_NAME
from libs.common.settings.read_settings import SettingsError, read_settings
from services.lifecycle.settings import LifecycleSettings


def read(*arguments: str) -> LifecycleSettings:
    return read_settings([LifecycleSettings], arguments, {}).get(LifecycleSettings)


@pytest.mark.parametrize(
    ("said", "deletes", "warned"), [((), False, True), (("=true",), True, False), (("=false",), False, False)]
)
def test_preempted_spot_machines_are_kept_with_a_warning_unless_it_is_said(
    said: tuple[str, ...], deletes: bool, warned: bool
):
    reading = read_settings([LifecycleSettings], [f"--delete-preempted-gcp-spot{each}" for each in said], {})
    assert reading.get(LifecycleSettings).deletion_policy.deletes_gcp_spot is deletes
    assert any("which the reference deletes" in each for each in reading.warnings) is warned


def test_a_second_instance_gives_its_lease_another_name():
    assert read().lease_name == LIFECYCLE_LEASE_NAME
    assert read("--lifecycle-lease-name=lifecycle-b").lease_name == "lifecycle-b"


@pytest.mark.parametrize(
    ("name", "message"), [("", "an empty name"), (WATCHER_LEASE_NAME, "the name of the watcher's Lease")]
)
def test_a_lease_that_is_none_or_anothers_stops_the_start(name: str, message: str):
    with pytest.raises(SettingsError, match=message):
        read(f"--lifecycle-lease-name={name}")
