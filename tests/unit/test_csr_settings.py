"""What csr can be told."""

import pytest

from libs.common.settings.reading import SettingsError, read_settings
from services.csr.settings import CsrSettings


def read(*arguments: str) -> CsrSettings:
    return read_settings([CsrSettings], arguments, {}).of(CsrSettings)


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
    with pytest.raises(SettingsError, match="all would be denied"):
        read("--csr-min-expiration=24h", "--csr-max-expiration=1h")
