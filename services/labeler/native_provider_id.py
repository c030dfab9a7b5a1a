"""What a machine's providerID is, by what Talos reports; when it may be written is `provider_id`'s to say."""

import re
from typing import Final

from libs.common.contract.machine import PlatformMetadata
from libs.common.contract.platforms import OUR_SCHEME

_AZURE_GROUP: Final = re.compile(r"/subscriptions/[^/]+/resourcegroups/([^/]+)/providers/", re.IGNORECASE)


def build_provider_id(platform: PlatformMetadata, node_ip: str) -> str:
    """What Talos reports, or `talos://<platform>/<node IP>` where there is no native one."""
    reported = derive_native_provider_id(platform)
    return reported or f"{OUR_SCHEME}://{platform.platform}/{node_ip}"


def derive_native_provider_id(platform: PlatformMetadata) -> str:
    """The machine's own providerID in the form that its native controllers write, "" if it has none."""
    if platform.platform != "azure":
        return platform.provider_id
    found = _AZURE_GROUP.search(platform.provider_id)
    if found is None:
        return platform.provider_id
    start, end = found.span(1)
    return platform.provider_id[:start] + found.group(1).lower() + platform.provider_id[end:]
