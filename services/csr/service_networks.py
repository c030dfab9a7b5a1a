"""The cluster's Service networks, as far as they are known: no node's address is in one."""

from collections.abc import Callable, Sequence
from typing import Final

from libs.common.events import ClusterNetworksObserved
from services.csr.checks import networks_of

_UNKNOWN_WITHOUT_TALOS: Final = (
    "metadata runs --without-talos, so no control plane reports the Service networks: set "
    "--service-cluster-ip-range; requests for IP addresses wait until then"
)


def known_service_networks(
    flag: Sequence[str], reported: ClusterNetworksObserved | None
) -> tuple[str, ...] | None:
    """Those of --service-cluster-ip-range and those that a control plane reports; None while unknown.

    A report without a network, or with one that cannot be read, is no knowledge.
    """
    cidrs = reported.service_cidrs if reported is not None else ()
    if flag:
        return (*flag, *cidrs)
    return cidrs if cidrs and len(networks_of(cidrs)) == len(cidrs) else None


class ServiceNetworks:
    """Follows what metadata reports."""

    def __init__(self, flag: Sequence[str], *, changed: Callable[[], None]) -> None:
        """`changed` is called when other networks are known than before."""
        self._flag = tuple(flag)
        self._changed = changed
        self.known = known_service_networks(self._flag, None)

    def take_in(self, event: object) -> None:
        """An event of the flow; every other kind is ignored."""
        if isinstance(event, ClusterNetworksObserved):
            self._learn(event)

    def forget(self) -> None:
        """What was reported is void."""
        self._learn(None)

    def problems(self, *, without_talos: bool) -> tuple[str, ...]:
        """Why requests wait until an operator acts: where metadata asks no machine, no report will come."""
        return (_UNKNOWN_WITHOUT_TALOS,) if without_talos and self.known is None else ()

    def _learn(self, reported: ClusterNetworksObserved | None) -> None:
        before, self.known = self.known, known_service_networks(self._flag, reported)
        if self.known != before:
            self._changed()
