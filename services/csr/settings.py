"""Settings of csr."""

from typing import Annotated

from libs.common.contract.ip_addresses import parse_interface_ip
from libs.common.contract.networks import parse_foreign_network
from libs.common.settings import flags
from libs.common.settings.cloud_config_reloader import CloudConfigSettings
from services.csr.core.decision import ApprovalPolicy


class CsrSettings(CloudConfigSettings, frozen=True, kw_only=True):
    """Settings of csr."""

    allowed_networks: Annotated[
        tuple[str, ...],
        flags.Flag(
            "csr-allowed-networks",
            "Networks (10.0.0.0/8,fd00::/8) in which csr accepts addresses that only the Node object has. "
            "Used only with --without-talos: csr then approves nothing unless this flag is set.",
            flags.CERTIFICATES,
        ),
    ] = ()
    service_cluster_ip_range: Annotated[tuple[str, ...], flags.SERVICE_CLUSTER_IP_RANGE] = ()
    min_expiration_seconds: Annotated[
        float | None,
        flags.Flag(
            "csr-min-expiration",
            "csr denies requests for a shorter certificate lifetime.",
            flags.CERTIFICATES,
            at_least=600.0,
        ),
    ] = None
    max_expiration_seconds: Annotated[
        float | None,
        flags.Flag(
            "csr-max-expiration",
            "csr denies requests for a longer certificate lifetime. Requests without a lifetime get the "
            "signer's.",
            flags.CERTIFICATES,
            at_least=600.0,
        ),
    ] = None
    # csr writes nothing after that long without Leading: another leader may be at work elsewhere.
    leader_silence_seconds: Annotated[float, flags.RENEW_DEADLINE] = 10.0
    in_flight: Annotated[
        int, flags.Flag("csr-in-flight", "Requests decided at the same time.", flags.CERTIFICATES, at_least=1)
    ] = 64
    # csr accepts a report on a request up to twice this old.
    republish_interval_seconds: Annotated[float, flags.METADATA_REPUBLISH_INTERVAL] = 300.0
    # Used for readiness only: each enriched request itself reports whether metadata queries machines.
    without_talos: Annotated[bool, flags.WITHOUT_TALOS] = False

    @property
    def policy(self) -> ApprovalPolicy:
        """The part that `decide` needs."""
        least, most = self.min_expiration_seconds, self.max_expiration_seconds
        return ApprovalPolicy(
            allowed_networks=self.allowed_networks,
            min_expiration_seconds=None if least is None else int(least),
            max_expiration_seconds=None if most is None else int(most),
        )

    def problems(self) -> tuple[str, ...]:
        """Return the invalid and contradictory settings."""
        found = [
            f'--csr-allowed-networks: "{text}" is not a network such as 10.0.0.0/8 or fd00::/8'
            for text in self.allowed_networks
            if not _is_network(text)
        ]
        found += [
            f'--service-cluster-ip-range: "{text}" is not a network such as 10.96.0.0/12'
            for text in self.service_cluster_ip_range
            if parse_foreign_network(text) is None
        ]
        least, most = self.min_expiration_seconds, self.max_expiration_seconds
        if least is not None and most is not None and least > most:
            found.append(
                "--csr-min-expiration is longer than --csr-max-expiration: csr would deny every request "
                "with a lifetime"
            )
        return tuple(found)


def _is_network(text: str) -> bool:
    network, ip = parse_foreign_network(text), parse_interface_ip(text)
    return network is not None and ip is not None and network.first == int(ip)
