"""The cluster's Service networks, as far as they are known: no node's address is in one."""

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
    """Those of --service-cluster-ip-range and those that a control plane reports; None while unknown.

    A report without a network, or with one that cannot be read, is no knowledge.
    """
    cidrs = reported.service_cidrs if reported is not None else ()
    if configured:
        return (*configured, *cidrs)
    return cidrs if cidrs and len(parse_networks(cidrs)) == len(cidrs) else None


class ServiceNetworks:
    """Follows what metadata reports."""

    def __init__(self, configured: Sequence[str], *, on_change: Callable[[], None]) -> None:
        """`changed` is called when other networks are known than before."""
        self._configured = tuple(configured)
        self._on_change = on_change
        self.cidrs = merge_service_networks(self._configured, None)

    def apply(self, event: object) -> None:
        """An event of the flow; every other kind is ignored."""
        if isinstance(event, ClusterNetworksObserved):
            self._update(event)

    def forget_report(self) -> None:
        """What was reported is void."""
        self._update(None)

    def problems(self, *, without_talos: bool) -> tuple[str, ...]:
        """Why requests wait until an operator acts: where metadata asks no machine, no report will come."""
        return (_UNKNOWN_WITHOUT_TALOS,) if without_talos and self.cidrs is None else ()

    def _update(self, reported: ClusterNetworksObserved | None) -> None:
        before, self.cidrs = self.cidrs, merge_service_networks(self._configured, reported)
        if self.cidrs != before:
            self._on_change()
