"""The last report of each cloud account about each Node, and the histories of those that say "gone"."""

from collections.abc import Mapping
from typing import Final

import msgspec

from libs.common.bus.stream_limits import MAX_MESSAGE_AGE
from libs.common.contract.events import (
    InstanceExists,
    InstanceGone,
    InstanceReport,
    InstanceShutDown,
    InstanceUnknown,
)
from libs.common.contract.instances import get_provider
from services.lifecycle.core.query_history import MAX_GAP, QueryHistory, QueryResult, append_query

InstanceSeen = InstanceExists | InstanceShutDown
# An account that is silent for longer is none any more: the stream has dropped its reports, each of which it
# publishes again three times in this time.
MAX_SILENCE: Final = MAX_MESSAGE_AGE


class AccountView(msgspec.Struct, frozen=True, kw_only=True):
    """What one account has reported about one Node."""

    last: InstanceReport
    received_at: float  # the last message, also a repeated one; monotonic, in seconds
    seen: InstanceSeen | None = None  # the last one, until the same project lacks it
    history: QueryHistory | None = None  # of the reports that say "gone", without a contradiction


InstanceViews = Mapping[str, AccountView]  # by account


def drop_silent_accounts(views: InstanceViews, monotonic_now: float) -> InstanceViews:
    """Return the views of accounts that still report."""
    return {
        account: view for account, view in views.items() if not _is_silent(view.received_at, monotonic_now)
    }


def _is_silent(heard_at: float, monotonic_now: float) -> bool:
    return monotonic_now - heard_at > MAX_SILENCE.total_seconds()


class InstanceReports:
    """Indexes by Node name. Repeated and older reports are ignored; they never make a Node look more gone."""

    def __init__(self) -> None:
        self._views: dict[str, dict[str, AccountView]] = {}
        self._heard: dict[str, dict[str, float]] = {}  # cloud -> account -> time of its last message

    def get(self, name: str) -> InstanceViews:
        """Return what each account has reported about a Node."""
        return self._views.get(name, {})

    def apply(self, report: InstanceReport, received_at: float) -> bool:
        """Store a report, and return whether it is news; `received_at` is monotonic time in seconds."""
        self._heard.setdefault(get_provider(report.provider_id), {})[report.account] = received_at
        views = self._views.setdefault(report.name, {})
        before = views.get(report.account)
        if before is not None and report.asked_at <= before.last.asked_at:
            # A clock was set back, or the message is repeated: it proves nothing, but may contradict.
            is_gone = isinstance(report, InstanceGone)
            views[report.account] = msgspec.structs.replace(
                before,
                received_at=received_at,
                history=before.history if is_gone else None,
                seen=before.seen if is_gone else _find_last_sight(before, report),
            )
            return False
        views[report.account] = _advance(before, report, received_at)
        return True

    def list_accounts(self, provider_id: str, monotonic_now: float) -> list[str]:
        """Return the accounts of this providerID's cloud that still report, on any Node."""
        heard = self._heard.get(get_provider(provider_id), {})
        return sorted(account for account, at in heard.items() if not _is_silent(at, monotonic_now))

    def forget_histories(self, name: str = "") -> None:
        """Drop the histories of a Node, or all of them: they are contradicted, or messages were missed."""
        for views in [self._views.get(name, {})] if name else self._views.values():
            for account, view in views.items():
                views[account] = msgspec.structs.replace(view, history=None)

    def forget(self, name: str) -> None:
        """Drop all reports about a Node that no longer exists."""
        self._views.pop(name, None)

    def clear(self) -> None:
        """Drop all reports, because the stream is another one. An account that was heard still counts."""
        self._views.clear()


def explain_unsound_round(report: InstanceGone) -> str:
    """Return why the times of its queries prove nothing; "" if they belong to one round."""
    if report.asked_at <= report.credential_loaded_at:
        return "its round began before the credential was loaded"
    if not report.asked_at <= report.witness.asked_at <= report.answered_at:
        return "the witness was not asked for within its round"
    if report.answered_at - report.asked_at > MAX_GAP:
        return f"its round took longer than {MAX_GAP.total_seconds() / 60:g} min"
    return ""


def _advance(before: AccountView | None, report: InstanceReport, received_at: float) -> AccountView:
    history = None
    if isinstance(report, InstanceGone) and not explain_unsound_round(report):
        query = QueryResult(started_at=report.asked_at, ended_at=report.answered_at, received_at=received_at)
        earlier = before.history if before is not None else None
        history = append_query(earlier, _history_identity(report), query)
    return AccountView(
        last=report, received_at=received_at, seen=_find_last_sight(before, report), history=history
    )


def _find_last_sight(before: AccountView | None, report: InstanceReport) -> InstanceSeen | None:
    """Return the last report of the instance alive, which only an answer about the same project ends."""
    match report:
        case InstanceExists() | InstanceShutDown():
            return report
        case InstanceGone():
            return None
    seen = before.seen if before is not None else None
    absent_from = report.absent_from if isinstance(report, InstanceUnknown) else None
    is_absent = seen is not None and absent_from is not None and absent_from == seen.anchor
    return None if is_absent else seen


def _history_identity(report: InstanceGone) -> str:
    """What its round was about, and with which credential: another one voids all earlier rounds."""
    return (
        f"{report.account} {report.node_uid} {report.provider_id} {report.credential_loaded_at.isoformat()}"
    )
