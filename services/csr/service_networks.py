"""The cluster's Service networks, as far as known: no node address may be in one."""

from collections.abc import Callable, Sequence
from typing import Final

from libs.common.contract.events import ClusterNetworksObserved, SnapshotComplete
from libs.common.contract.events.from_watcher import SERVICE_CIDRS_UNKNOWN
from services.csr.request_checks import parse_networks

_UNKNOWN_WITHOUT_TALOS: Final = (
    "metadata runs --without-talos, so no control plane reports the Service networks: set "
    "--service-cluster-ip-range; requests for IP addresses wait until then"
)


def merge_service_networks(
    configured: Sequence[str], reported: Sequence[str], added: Sequence[str]
) -> tuple[str, ...] | None:
    """Merge the networks of --service-cluster-ip-range, a control plane's report and ServiceCIDR objects.

    None while only ServiceCIDRs are known. A report with no network or an invalid one does not count.
    """
    if configured:
        return (*configured, *reported, *added)
    is_valid = bool(reported) and len(parse_networks(reported)) == len(reported)
    return (*reported, *added) if is_valid else None


class ServiceNetworks:
    """Follows metadata's reports of the cluster networks, and the watcher's ranges of ServiceCIDRs."""

    def __init__(self, configured: Sequence[str], *, on_change: Callable[[], None]) -> None:
        """`on_change` is called when the known networks change."""
        self._configured = tuple(configured)
        self._on_change = on_change
        self._reported: tuple[str, ...] = ()
        self._snapshot: SnapshotComplete | None = None
        self.cidrs = merge_service_networks(self._configured, (), ())

    @property
    def has_service_cidrs(self) -> bool:
        """Whether the ranges of ServiceCIDR objects are known."""
        return self._snapshot is not None and self._snapshot.service_cidrs is not None

    def apply(self, event: object) -> None:
        """Apply an event of the flow; ignore other kinds."""
        match event:
            case ClusterNetworksObserved(service_cidrs=reported):
                self._update(reported, self._snapshot)
            case SnapshotComplete():
                self._update(self._reported, event)

    def forget_report(self) -> None:
        """Drop the report of a control plane."""
        self._update((), self._snapshot)

    def forget_all(self) -> None:
        """Drop the report, and the ranges of ServiceCIDRs."""
        self._update((), None)

    def problems(self, *, without_talos: bool) -> tuple[str, ...]:
        """Return why requests wait until an operator acts.

        The watcher may lack the right to list ServiceCIDRs. Without Talos, metadata reports no networks.
        """
        if self._snapshot is not None and not self.has_service_cidrs:
            return (f"{SERVICE_CIDRS_UNKNOWN}; requests for IP addresses wait until then",)
        return (_UNKNOWN_WITHOUT_TALOS,) if without_talos and self.cidrs is None else ()

    def _update(self, reported: tuple[str, ...], snapshot: SnapshotComplete | None) -> None:
        before = self.cidrs, self.has_service_cidrs
        self._reported, self._snapshot = reported, snapshot
        added = snapshot.service_cidrs if snapshot is not None else None
        self.cidrs = merge_service_networks(self._configured, reported, added or ())
        if (self.cidrs, self.has_service_cidrs) != before:
            self._on_change()
