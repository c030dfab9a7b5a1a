"""Cloud accounts: whether each cloud answers, its instances, and Nodes that the limit keeps. Pure."""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from cli.inside.flow_snapshot import FlowSnapshot
from cli.lines import format_age, format_names, pluralize
from libs.clouds.request_budget import SHARE_OF_OTHERS
from libs.common.contract.events import AccountReport, Decided, KubeServiceObserved
from libs.common.contract.instances import read_instance_record
from libs.common.contract.node import Node
from libs.common.contract.services import LIFECYCLE
from services.cloud.core.instance_schedule import ACCOUNT_REPORT_SECONDS
from services.lifecycle.core.deletion_limit import LIMITED
from services.lifecycle.core.evidence import is_not_ready

_SILENT_SECONDS: Final = 4 * ACCOUNT_REPORT_SECONDS


class BlockedBalancer(msgspec.Struct, frozen=True, kw_only=True):
    """A Service whose load balancer is blocked, and the reason in its condition."""

    namespace: str
    name: str
    why: str


class AccountStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One account that reports, or that a Node's record names: such a one may have been removed."""

    name: str
    provider: str = ""  # "": no report of it is in the stream
    problem: str = ""  # why it proves nothing now
    instances: Mapping[str, int] = {}  # state -> Nodes
    requests_left: int | None = None  # of `rate_limit`
    rate_limit: int | None = None
    waiting: tuple[str, ...] = ()  # the Nodes of deleted servers that the limit of deletions keeps

    def list_problems(self) -> Iterator[str]:
        """Yield what keeps the account from its work, one line each."""
        left, limit = self.requests_left, self.rate_limit
        if self.problem:
            yield self.problem
        elif left is not None and limit is not None and left < limit * SHARE_OF_OTHERS:
            # It pauses, so that the rest is left to the project's other clients.
            yield f"{left:,} of {limit:,} requests remain of its rate limit"
        if self.waiting:
            count, names = pluralize(len(self.waiting), "Node"), format_names(self.waiting)
            yield f"{count} of deleted servers kept by the limit of deletions: {names}"


def summarize_accounts(nodes: tuple[Node, ...], flow: FlowSnapshot | None) -> tuple[AccountStatus, ...]:
    """Return the accounts that report, and those that Nodes name; none if NATS does not answer."""
    if flow is None or flow.stream is None:
        return ()
    waiting: dict[str, list[str]] = {}
    for node in nodes:
        if (record := read_instance_record(node)) is not None:
            limited = [node.name] if is_not_ready(node) and _is_limited(node, flow) else []
            waiting.setdefault(record.account, []).extend(limited)
    found = {account: AccountStatus(name=account, waiting=tuple(names)) for account, names in waiting.items()}
    for message in flow.accounts:
        report, silent = message.event, (flow.at - message.published_at).total_seconds()
        if not isinstance(report, AccountReport) or message.is_misplaced:
            continue
        is_silent = silent > _SILENT_SECONDS
        found[report.account] = AccountStatus(
            name=report.account,
            provider=report.provider,
            problem=f"it has not reported for {format_age(silent)}" if is_silent else report.failure,
            instances=report.instances,
            requests_left=report.requests_left,
            rate_limit=report.rate_limit,
            waiting=tuple(waiting.get(report.account, ())),
        )
    return tuple(found[account] for account in sorted(found))


def list_blocked_balancers(flow: FlowSnapshot) -> Iterator[BlockedBalancer]:
    """Yield the Services whose load balancer is blocked, by the watcher's last message about each."""
    for message in flow.blocked_services:
        event = message.event
        if not isinstance(event, KubeServiceObserved) or message.is_misplaced:
            continue
        if (found := event.service.blocked_condition) is not None:
            meta, why = event.service.metadata, ": ".join(filter(None, (found.reason, found.message)))
            yield BlockedBalancer(namespace=meta.namespace, name=meta.name, why=why)


def _is_limited(node: Node, flow: FlowSnapshot) -> bool:
    messages = flow.find_object("node", node.name)
    limited = (LIFECYCLE.service, node.uid, LIMITED)
    decisions = messages.list_events(Decided) if messages is not None else ()
    return any((each.service, each.uid, each.outcome) == limited for each in decisions)
