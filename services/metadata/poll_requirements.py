"""What polls must provide for rules, ipam, cloud accounts and the --cloud-config file."""

import logging

from libs.common.cloud_config.document import CloudConfigError
from libs.common.cloud_config.fact_fields import required_resources, requires_system
from libs.common.cloud_config.model import CloudConfig
from libs.talos.resources import Part
from services.metadata.settings import MetadataSettings

log = logging.getLogger(__name__)


class PollRequirements:
    """The present requirements. A changed --cloud-config file changes them."""

    def __init__(self, settings: MetadataSettings) -> None:
        self._serves_ipam = settings.serves_ipam
        self._serves_accounts = bool(settings.metadata_accounts)  # a machine names its instance by SMBIOS
        self._apply(settings.cloud_config)
        self.prefer_ipv6 = settings.prefer_ipv6

    def update(self, config: CloudConfig | CloudConfigError) -> bool:
        """Apply the changed file. Return whether machines must be polled for it.

        It logs one mistake of an invalid file: the labeler logs them all.
        """
        if isinstance(config, CloudConfigError):
            fields = {"reason": "; ".join(config.mistakes[:1]), "mistakes": len(config.mistakes)}
            log.warning("invalid --cloud-config file ignored, keeping the previous one", extra=fields)
            return False
        before = (self.needed_parts, self.needs_system, self.prefer_ipv6)
        self._apply(config)
        self.prefer_ipv6 = bool(config.prefer_ipv6)
        if (self.needed_parts, self.needs_system, self.prefer_ipv6) == before:
            return False
        fields = {"inventory": sorted(self.needed_parts), "prefer_ipv6": self.prefer_ipv6}
        log.info("poll requirements changed with the --cloud-config file", extra=fields)
        return True

    def _apply(self, config: CloudConfig) -> None:
        pools = config.pools if self._serves_ipam else ()
        gateways: frozenset[Part] = frozenset({"RouteStatus"} if self._serves_ipam else ())
        self.needed_parts: frozenset[Part] = required_resources(config.rules, pools) | gateways
        self.needs_system = self._serves_accounts or requires_system(config.rules, pools)
