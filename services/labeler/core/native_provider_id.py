"""Derives a machine's providerID from its platform metadata; `provider_id` decides when it is final."""

import re
from typing import Final

from libs.common.contract.machine import PlatformMetadata
from libs.common.contract.platforms import OUR_SCHEME, PLATFORMS_THAT_IGNORE_CASE

_AZURE_GROUP: Final = re.compile(r"/subscriptions/[^/]+/resourcegroups/([^/]+)/providers/", re.IGNORECASE)


def build_provider_id(platform: PlatformMetadata, node_ip: str) -> str:
    """Return the native providerID or, if there is none, `talos://<platform>/<node IP>`."""
    reported = derive_native_provider_id(platform)
    return reported or f"{OUR_SCHEME}://{platform.platform}/{node_ip}"


def derive_native_provider_id(platform: PlatformMetadata) -> str:
    """Return the providerID in the form that the platform's own controllers write, or "".

    A resource group, which only Azure has, is in lower case.
    """
    if platform.platform not in PLATFORMS_THAT_IGNORE_CASE:
        return platform.provider_id
    found = _AZURE_GROUP.search(platform.provider_id)
    if found is None:
        return platform.provider_id
    start, end = found.span(1)
    return platform.provider_id[:start] + found.group(1).lower() + platform.provider_id[end:]
