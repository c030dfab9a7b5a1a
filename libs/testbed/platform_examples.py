"""Machines of several platforms, and the providerIDs that Talos reports for them."""

from __future__ import annotations

from typing import Final

from libs.common.contract.platforms import CONFIGURED_PROVIDER_ID, PLATFORMS

# A mixed fleet: each platform has its own providerID format.
MIXED_FLEET: Final = ("aws", "metal", "hcloud", "nocloud", "gcp", "azure", "openstack", "vultr")
_GROUP = _PROJECT = "testbed"


def format_provider_id(platform: str, **values: str) -> str:
    """Return the providerID that Talos reports for a machine with these values."""
    row = PLATFORMS[platform]
    form = row.example.provider_id if row.provider_id == CONFIGURED_PROVIDER_ID else row.provider_id
    return form.format(group=_GROUP, project=_PROJECT, **values)
