"""Compares destinations of routes: CIDRs as Kubernetes and clouds write them."""

from collections.abc import Iterable, Iterator
from functools import lru_cache

from libs.clouds.routes import Route
from libs.common.contract.networks import NetworkSet, contains, parse_foreign_network


class RouteIndex:
    """The routes of a network by destination. Without it, each Node is compared with each route."""

    def __init__(self, routes: Iterable[Route]) -> None:
        parsed = ((parse_foreign_network(each.destination), each) for each in sorted(routes))
        # A default route is in no one's way.
        self._routes = {network: each for network, each in parsed if network is not None and network.prefix}
        self._networks = NetworkSet(each.destination for each in self._routes.values())

    def find_overlapping(self, destination: str) -> Route | None:
        """Return a route that shares addresses with the destination; a default route does not count."""
        network = parse_foreign_network(destination)
        found = self._networks.find_overlap(network) if network is not None else None
        return self._routes[found] if found is not None else None


@lru_cache(maxsize=4)
def index_routes(routes: frozenset[Route]) -> RouteIndex:
    """Return the index; a table of routes stays the same for many plans."""
    return RouteIndex(routes)


def list_canonical(cidrs: Iterable[str]) -> Iterator[str]:
    """Yield CIDRs in the form of clouds: without host bits and leading zeros. Invalid ones are left out."""
    return (str(network) for cidr in cidrs if (network := parse_foreign_network(cidr)) is not None)


def is_network(text: str) -> bool:
    """Whether the text is a network without host bits, and not everything."""
    network = parse_foreign_network(text)
    return network is not None and network.prefix > 0 and str(network) == text


def is_inside_any(destination: str, networks: Iterable[str]) -> bool:
    """Whether one of the networks contains the whole destination."""
    inner = parse_foreign_network(destination)
    outer = map(parse_foreign_network, networks)
    return inner is not None and any(contains(each, inner) for each in outer if each is not None)
