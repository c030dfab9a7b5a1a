"""Asks the cloud of one account for the instances of all Nodes: by list, by id, and beside a witness."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import NoneType
from typing import Final, TypeVar

from libs.clouds.instances import CREDENTIAL_ANCHOR, Anchor, Credential, Instance, Instances, Unanswered
from libs.clouds.request_budget import RequestBudget
from libs.common.contract.events import (
    AccountReport,
    AnyInstanceEvent,
    AnyInstanceReport,
    InstanceExists,
    InstanceGone,
    InstanceShutDown,
    InstanceUnknown,
)
from libs.common.contract.instances import InstanceAnchor
from libs.common.observability import metrics
from libs.common.service.service import run_together
from services.cloud.core.instance_schedule import MAX_NEW_PER_STEP, InstanceSchedule, QueryIntervals
from services.cloud.core.judge_round import (
    Account,
    InstanceAnswer,
    NameAnswer,
    Query,
    Round,
    WitnessAnswer,
    build_seen_report,
    build_unlisted_report,
    judge_round,
)
from services.cloud.core.node_table import CloudNode, NodeTable

log = logging.getLogger(__name__)

# Of an instance by the last report about it, for the metric.
_STATES: Final[dict[type, str]] = {
    InstanceExists: "exists",
    InstanceShutDown: "shut-down",
    InstanceGone: "gone",
    InstanceUnknown: "unknown",
    NoneType: "not-asked",
}

ANCHOR_NOT_SOUGHT: Final = Unanswered("held_back", "", retry_after_seconds=1.0)
AnswerT = TypeVar("AnswerT")


@dataclass(eq=False, kw_only=True)
class AccountPoller:
    """Decides by the schedule what to ask, asks, and hands each report to `publish`."""

    account: str
    provider: str
    cloud: Instances
    nodes: NodeTable
    stream_id: Callable[[], str]
    why_paused: Callable[[], tuple[str, ...]]  # why the Nodes are not known now; nothing is asked then
    publish: Callable[[AnyInstanceEvent], Awaitable[None]]
    on_listed: Callable[[Query, Mapping[str, Instance]], Awaitable[None]]  # with the instances by id
    monotonic: Callable[[], float]
    now: Callable[[], datetime]
    step_seconds: float
    intervals: QueryIntervals
    requests_per_minute: int
    needs_anchor: bool = False  # also without any instance

    def __post_init__(self) -> None:
        self.schedule = InstanceSchedule(intervals=self.intervals)
        self._anchor: Anchor | None = None
        self._anchor_credential: Credential | None = None  # which has found the anchor, or that there is none
        self._why_no_anchor = ANCHOR_NOT_SOUGHT
        self._failure = ""
        self._is_asked = False  # whether anything is asked of the account
        # A round leaves some requests of each minute to new Nodes.
        self._round_budget = RequestBudget(requests_per_minute=self.requests_per_minute * 3 // 4)

    @property
    def anchor(self) -> InstanceAnchor | Unanswered | None:
        """The anchor by the present credential. None: the project has none. Unanswered: not known yet."""
        if self._anchor_credential != self.cloud.credential:
            return self._why_no_anchor
        return None if self._anchor is None else InstanceAnchor(kind=self._anchor.kind, id=self._anchor.id)

    def problems(self) -> tuple[str, ...]:
        """Return why the cloud answers nothing, in words for /readyz."""
        return (f"cloud account {self.account}: {self._failure}",) if self._failure else ()

    async def run(self) -> None:
        """Ask until cancelled. A round takes minutes, and new Nodes do not wait for it."""
        await run_together(self._repeat(self.step), self._repeat(self.step_round))

    async def _repeat(self, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(self.step_seconds)
            await step()

    async def step(self) -> None:
        """Ask for new Nodes, and look for the anchor and list all instances if that is due."""
        has_instances = self._update()
        self._is_asked = has_instances or self.needs_anchor or bool(self.why_paused())
        self._update_metrics()
        if not has_instances and (self.why_paused() or not self.needs_anchor):
            if not self._is_asked:
                self._failure = ""
            return
        if self._anchor_credential not in {None, self.cloud.credential}:
            self._anchor, self._anchor_credential = None, None  # of another project, perhaps
            self.schedule.next_anchor_at = self.monotonic()
        if self.monotonic() >= self.schedule.next_anchor_at:
            await self._find_anchor()
        if not has_instances:
            return
        new = self.schedule.list_new(self.nodes)
        is_burst = self.schedule.is_list_cheaper(len(new))
        if new and not is_burst:
            await self._query_round(new[:MAX_NEW_PER_STEP], (), budget=None)
        if is_burst or self.monotonic() >= self.schedule.next_list_at:
            await self.list_all()

    async def step_round(self) -> None:
        """Ask for suspect instances, beside a witness, if that is due."""
        if not self._update():
            return
        suspects = self.schedule.select_suspects(self.nodes, self.monotonic())
        if suspects:
            self.schedule.next_round_at = self.monotonic() + self.intervals.round
            await self._query_round(suspects, self._select_witnesses(suspects), budget=self._round_budget)

    def _select_witnesses(self, suspects: Sequence[CloudNode]) -> Sequence[CloudNode]:
        """Return Nodes that the present credential has shown alive, if one of the suspects needs them."""
        anchor = InstanceAnchor(kind=CREDENTIAL_ANCHOR, id=self.cloud.credential.fingerprint)
        if not any(node.record is not None and node.record.anchor == anchor for node in suspects):
            return ()
        return self.schedule.select_witnesses(self.nodes, suspects, anchor)

    def _update(self) -> bool:
        """Bring the schedule up to date; return whether there is anything to ask."""
        if self.why_paused():
            return False
        self.schedule.update(self.nodes)
        return bool(self.schedule.by_name)

    def build_report(self) -> AccountReport:
        """Return whether the cloud answers, and what it has said of all instances."""
        counts = Counter(type(known.report) for known in self.schedule.by_name.values())
        # The last one may be as old as the last Node.
        rate_limit = self.cloud.rate_limit if self._is_asked else None
        return AccountReport(
            account=self.account,
            provider=self.provider,
            failure=self._failure,
            instances={state: counts[kind] for kind, state in _STATES.items()},
            requests_left=rate_limit.remaining if rate_limit is not None else None,
            rate_limit=rate_limit.limit if rate_limit is not None else None,
        )

    def _update_metrics(self) -> None:
        report = self.build_report()
        for state, count in report.instances.items():
            metrics.CLOUD_INSTANCES.labels(self.account, state).set(count)
        if report.requests_left is not None and report.rate_limit is not None:
            metrics.CLOUD_REQUESTS_LEFT.labels(self.account).set(report.requests_left)
            metrics.CLOUD_RATE_LIMIT.labels(self.account).set(report.rate_limit)
        else:
            metrics.CLOUD_REQUESTS_LEFT.remove(self.account)
            metrics.CLOUD_RATE_LIMIT.remove(self.account)

    # ---- the three kinds of queries

    async def _find_anchor(self) -> None:
        """Look for the anchor; keep the former one of this credential if the cloud does not answer."""
        before = self.cloud.credential
        query, found = await self.ask(self.cloud.find_anchor())
        if query.credential != before:
            return  # the next step asks with the new credential
        if isinstance(found, Unanswered):
            self.schedule.next_anchor_at = self.monotonic() + self.intervals.round
            self._why_no_anchor = found
            return
        self._why_no_anchor = ANCHOR_NOT_SOUGHT  # by the next credential
        self._anchor, self._anchor_credential = found, before
        self.schedule.next_anchor_at = self.monotonic() + self.intervals.anchor

    async def list_all(self) -> None:
        """List all instances. Presence is an answer; absence is only a reason to ask for the id."""
        before = self.cloud.credential
        query, found = await self.ask(self.cloud.list_instances())
        if query.credential != before:
            return  # the next step lists again
        self.schedule.record_list(None if isinstance(found, Unanswered) else len(found), self.monotonic())
        if isinstance(found, Unanswered):
            return  # what is new or suspect is asked for by its id, and gets that reason
        by_id = {instance.id: instance for instance in found}
        account = self._describe_account(query.credential)
        absent: list[CloudNode] = []  # and never asked for
        for node in tuple(self.nodes):
            known = self.schedule.by_name.get(node.name)
            if known is None or not known.is_about(node):
                continue  # it came while the instances were listed
            instance = by_id.get(node.instance_id)
            if instance is not None:
                await self._report(node, build_seen_report(node, instance, query, account), query)
                continue
            self.schedule.record_absence(node.name, self.monotonic())
            if known.report is None:
                absent.append(node)
        # A few are asked for by id in the next step: a list may be behind. Many are another account's.
        for node in absent if self.schedule.is_list_cheaper(len(absent)) else ():
            await self._report(node, build_unlisted_report(node, query, account), query)
        await self.on_listed(query, by_id)

    async def _query_round(
        self, nodes: Sequence[CloudNode], witnesses: Sequence[CloudNode], *, budget: RequestBudget | None
    ) -> None:
        """Ask for each of these instances, then for a witness, then for the names of those not found."""
        credential = self.cloud.credential
        missing: list[tuple[CloudNode, Round]] = []
        for node in nodes:
            await _pace(budget)
            query, found = await self.ask(self.cloud.get_instance(node.instance_id))
            answers = Round(
                credential=credential,
                instance=InstanceAnswer(query=query, instance_id=node.instance_id, answer=found),
            )
            if isinstance(found, Instance | Unanswered):
                account = self._describe_account(query.credential)
                await self._report(node, judge_round(node, answers, account), query)
            else:
                missing.append((node, answers))
            if query.credential.generation != credential.generation:
                break  # all that the former credential answered is void
        if not missing:
            return
        witness = await self._find_instance_witness(witnesses)
        by_anchor: dict[Anchor, WitnessAnswer] = {}
        for node, answers in missing:
            await _pace(budget)
            of_node = await self._find_anchor_witness(node, by_anchor) or witness
            query, same = await self.ask(self.cloud.find_by_name(node.name))
            name = NameAnswer(query=query, answer=same)
            complete = Round(credential=credential, instance=answers.instance, witness=of_node, name=name)
            report = judge_round(node, complete, self._describe_account(credential))
            await self._report(node, report, answers.instance.query)

    async def _find_instance_witness(self, candidates: Sequence[CloudNode]) -> WitnessAnswer | None:
        """Return the answer for the first of these instances that the cloud finds; None without one."""
        for node in candidates:
            query, found = await self.ask(self.cloud.get_instance(node.instance_id))
            if isinstance(found, Instance):
                return WitnessAnswer(query=query, asked_for=node.instance_id, answer=found)
        return None

    async def _find_anchor_witness(
        self, node: CloudNode, known: dict[Anchor, WitnessAnswer]
    ) -> WitnessAnswer | None:
        """Return the answer for the recorded anchor of the Node; `known` has those of this round."""
        if node.record is None or node.record.anchor is None or node.record.anchor.kind == CREDENTIAL_ANCHOR:
            return None
        anchor = Anchor(node.record.anchor.kind, node.record.anchor.id)
        if anchor not in known:
            query, found = await self.ask(self.cloud.get_anchor(anchor))
            known[anchor] = WitnessAnswer(query=query, asked_for=anchor, answer=found)
        return known[anchor]

    # ---- what all queries have in common

    async def ask(self, request: Awaitable[AnswerT]) -> tuple[Query, AnswerT]:
        """Return the answer, with its times and the credential after it."""
        began, asked_at = self.monotonic(), self.now()
        answer = await request
        self._note_answer(answer)
        credential = self.cloud.credential
        query = Query(began=began, asked_at=asked_at, answered_at=self.now(), credential=credential)
        return query, answer

    async def _report(self, node: CloudNode, report: AnyInstanceReport, query: Query) -> None:
        """Keep the report and publish it, unless the Node has changed meanwhile."""
        known = self.schedule.by_name.get(node.name)
        current = self.nodes.get(node.name)
        if known is None or current is None or not known.is_about(current) or not known.is_about(node):
            return
        if query.began < known.began:
            return  # a list that took longer than a round
        known.began = query.began
        self.schedule.record(node.name, report, self.monotonic())
        await self.publish(report)

    def _describe_account(self, credential: Credential) -> Account:
        anchor = self._anchor if credential == self._anchor_credential else None
        return Account(name=self.account, stream_id=self.stream_id(), anchor=anchor)

    def _note_answer(self, answer: object) -> None:
        before, self._failure = self._failure, answer.reason if isinstance(answer, Unanswered) else ""
        if self._failure and not before:
            log.warning("the cloud does not answer", extra={"account": self.account, "error": self._failure})
        elif before and not self._failure:
            log.info("the cloud answers again", extra={"account": self.account})


async def _pace(budget: RequestBudget | None) -> None:
    if budget is not None:
        now = asyncio.get_running_loop().time
        await asyncio.sleep(budget.seconds_until_allowed(now()))
        budget.count_request(now())
