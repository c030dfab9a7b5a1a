"""The cluster's Service networks, as far as known: no node address may be in one."""

from collections.abc import Callable, Sequence
from typing import Final

from libs.common.contract.events import ClusterNetworksObserved
from services.csr.request_checks import parse_networks

_UNKNOWN_WITHOUT_TALOS: Final = (
    "metadata runs --without-talos, so no control plane reports the Service networks: set "
    "--service-cluster-ip-range; requests for IP addresses wait until then"
)


def merge_service_networks(
    configured: Sequence[str], reported: ClusterNetworksObserved | None
) -> tuple[str, ...] | None:
    """Merge the networks of --service-cluster-ip-range and of a control plane's report; None while unknown.

    A report with no network or an invalid one does not count.
    """
    cidrs = reported.service_cidrs if reported is not None else ()
    if configured:
        return (*configured, *cidrs)
    return cidrs if cidrs and len(parse_networks(cidrs)) == len(cidrs) else None


class ServiceNetworks:
    """Follows metadata's reports of the cluster networks."""

    def __init__(self, configured: Sequence[str], *, on_change: Callable[[], None]) -> None:
        """`on_change` is called when the known networks change."""
        self._configured = tuple(configured)
        self._on_change = on_change
        self.cidrs = merge_service_networks(self._configured, None)

    def apply(self, event: object) -> None:
        """Apply an event of the flow; ignore other kinds."""
        if isinstance(event, ClusterNetworksObserved):
            self._update(event)

    def forget_report(self) -> None:
        """Drop the report."""
        self._update(None)

    def problems(self, *, without_talos: bool) -> tuple[str, ...]:
        """Return why requests wait until an operator acts: without Talos, metadata reports no networks."""
        return (_UNKNOWN_WITHOUT_TALOS,) if without_talos and self.cidrs is None else ()

    def _update(self, reported: ClusterNetworksObserved | None) -> None:
        before, self.cidrs = self.cidrs, merge_service_networks(self._configured, reported)
        if self.cidrs != before:
            self._on_change()
