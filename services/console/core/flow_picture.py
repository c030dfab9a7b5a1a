"""The services and what they talk to as a picture: places, the messages between them, and a verdict. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from libs.common.contract.services import (
    CONTROLLER_SERVICES,
    LIFECYCLE,
    METADATA,
    WATCHER,
    ServiceSpec,
)
from libs.common.contract.subjects import ENRICHED_CSR
from services.console.core.overview import LATE_SECONDS, Health, ServiceStatus, count_of, describe_errors

_KUBERNETES: Final = "kubernetes"
_MACHINES: Final = "machines"
_CLOUDS: Final = "clouds"
_QUERIED: Final = (_MACHINES, _CLOUDS)  # a service queries them, and they send no message
_TALOS_ERROR: Final = "failed Talos calls"
_SHORT_SECONDS: Final = 1.0  # messages that wait no longer are on their way


def _get_enriched_kind(spec: ServiceSpec) -> str:
    """Return the kind of messages from metadata that the service acts on."""
    is_of_requests = any(durable.filter.startswith(ENRICHED_CSR) for durable in spec.durables)
    return "enriched_csr" if is_of_requests else "enriched"


_EDGES: Final = (  # source, target, and the kind of its messages
    (_KUBERNETES, WATCHER.service, "observed"),
    (WATCHER.service, METADATA.service, "observed"),
    (_MACHINES, METADATA.service, "enriched"),
    *((METADATA.service, spec.service, _get_enriched_kind(spec)) for spec in CONTROLLER_SERVICES),
    (_CLOUDS, LIFECYCLE.service, "cloud"),
)


class Edge(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Messages from one place to another, or the queries of a place by a service."""

    source: str
    target: str
    is_query: bool = False
    is_off: bool = False
    rate: float = 0.0  # per second
    lag: int = 0  # messages that wait
    lag_since: float = 0.0  # publication of the oldest of them, in seconds since 1970; 0 = unknown
    is_late: bool = False
    errors: int = 0  # in the last five minutes


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether all is well, and if not, what is the worst."""

    health: Health
    title: str
    text: str = ""


def list_places(services: Sequence[ServiceStatus], nodes: int) -> tuple[ServiceStatus, ...]:
    """Return the status of each place. Errors of queries belong to what is queried."""
    accounts = [each for each in services if each.service.startswith("cloud-")]
    own = {each.service: each for each in services if each not in accounts}
    metadata, watcher = own[METADATA.service], own[WATCHER.service]
    errors = dict(metadata.errors)
    failed_queries = {_TALOS_ERROR: errors.pop(_TALOS_ERROR)} if _TALOS_ERROR in errors else {}
    own[METADATA.service] = replace(metadata, errors=errors)
    places = (
        ServiceStatus(
            service=_KUBERNETES,
            health="off" if watcher.health == "bad" else "ok",
            text=count_of(nodes, "Node"),
        ),
        ServiceStatus(
            service=_MACHINES, health=metadata.health, text="over the Talos API", errors=failed_queries
        ),
        _join_accounts(accounts),
        *own.values(),
    )
    return tuple(
        replace(each, details=". ".join(filter(None, (each.details, describe_errors(each)))))
        for each in places
    )


def _join_accounts(accounts: Sequence[ServiceStatus]) -> ServiceStatus:
    if not accounts:
        return ServiceStatus(service=_CLOUDS, health="off", text="none configured")
    failed = next((each for each in accounts if each.health != "ok"), None)
    return ServiceStatus(
        service=_CLOUDS,
        health=failed.health if failed is not None else "ok",
        text=failed.text if failed is not None else count_of(len(accounts), "account"),
        errors=dict(sum((Counter(each.errors) for each in accounts), Counter())),
    )


def list_edges(places: Sequence[ServiceStatus], rates: Mapping[str, float], now: float) -> tuple[Edge, ...]:
    """Return what is on each edge. Messages wait for the service that receives them."""
    by_name = {each.service: each for each in places}
    return tuple(
        _make_edge(by_name[source], by_name[target], rates.get(kind, 0.0), now)
        for source, target, kind in _EDGES
    )


def _make_edge(source: ServiceStatus, target: ServiceStatus, rate: float, now: float) -> Edge:
    is_query = source.service in _QUERIED
    is_off = "off" in (source.health, target.health)
    seconds = now - target.lag_since if target.lag_since else 0.0
    is_short = bool(target.lag_since) and seconds < _SHORT_SECONDS
    waits = not (is_query or is_off or is_short)
    return Edge(
        source=source.service,
        target=target.service,
        is_query=is_query,
        is_off=is_off,
        rate=rate,
        lag=target.lag if waits else 0,
        lag_since=target.lag_since if waits else 0.0,
        is_late=waits and seconds > LATE_SECONDS,
        errors=sum((source if is_query else target).errors.values()),
    )


def judge(
    services: Sequence[ServiceStatus], states: Mapping[str, int], blocked: int, problems: Sequence[str]
) -> Verdict:
    """Return the most severe problem.

    From the most severe: outdated data, a service, Nodes and load balancers, a warning, errors. A Node
    without a route is stuck. `blocked` is the number of blocked load balancers.
    """
    bad = next((each for each in services if each.health == "bad"), None)
    warning = next((each for each in services if each.health == "warning"), None)
    failing = next((each for each in services if each.errors), None)
    stuck, joining, nodes = states.get("stuck", 0), states.get("joining", 0), sum(states.values())
    if problems:
        return Verdict(health="bad", title="The data may be outdated", text=problems[0])
    if bad is not None:
        return Verdict(health="bad", title=f"{bad.service} is not well", text=bad.text)
    if stuck or blocked:
        of_nodes = f"{count_of(stuck, 'Node is', 'Nodes are')} stuck" if stuck else ""
        balancers = count_of(blocked, "load balancer is", "load balancers are")
        title = "; ".join(filter(None, (of_nodes, f"{balancers} blocked" if blocked else "")))
        return Verdict(health="bad", title=title, text="The list below says why, and what to do.")
    if warning is not None:
        return Verdict(health="warning", title=f"{warning.service}: {warning.text}")
    if failing is not None:
        text = describe_errors(failing)
        return Verdict(health="warning", title=f"{failing.service} reports errors", text=text)
    if joining:
        title = f"{count_of(joining, 'Node')} {'joins' if joining == 1 else 'join'}"
        return Verdict(health="busy", title=title, text="No service has a problem.")
    if not nodes:
        text = "A Node appears here when its kubelet registers it."
        return Verdict(health="off", title="No Node yet", text=text)
    text = f"{count_of(nodes, 'Node')}, every service works, and nothing waits."
    return Verdict(health="ok", title="All is well", text=text)
