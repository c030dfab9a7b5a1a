"""What the search of load balancers visits, and each rule that it misses when the rule is left out."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from libs.clouds.balancers import Balancer
from libs.common.contract.kube_service import KubeService
from services.cloud.core.balancers import balancer_answers, plan_end, plan_step, step_parts
from services.cloud.core.balancers.balancer_answers import ANSWER_AGE, get_own_attempt
from services.cloud.core.balancers.balancer_record import BalancerAccount, is_selected, read_balancer_record
from services.cloud.core.balancers.balancer_steps import RecordBalancer
from tests.builders import NOW
from tests.model.clouds.balancer_moves import build_model
from tests.model.clouds.balancer_world import (
    BEGIN,
    CHANGE_OF_CLASS,
    CHANGE_OF_TYPE,
    LIFE,
    Faults,
    Physics,
    World,
)
from tests.model.clouds.core_patches import patch_core
from tests.model.search import Model

MIN_STATES: Final = 1_000  # fewer: the model has lost steps


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """One search: what may fail, and what users do."""

    faults: Faults
    script: tuple[str, ...] = LIFE
    other_project: int | None = None  # of the second account, if there is one
    physics: Physics = Physics()

    @contextmanager
    def open_model(self) -> Iterator[Model[World]]:
        """Yield the model to search."""
        yield build_model(
            self.faults, script=self.script, physics=self.physics, other_project=self.other_project
        )


SEARCHES: Final[Mapping[str, Search]] = {
    "crashes and lost answers": Search(faults=Faults(crashes=1, lost_answers=2)),
    "two leaders, of which one acts on a former Service": Search(faults=Faults(handovers=1, stale_reads=1)),
    "two leaders and a lost answer": Search(faults=Faults(handovers=1, lost_answers=1)),
    "two leaders and a crash": Search(faults=Faults(handovers=1, crashes=1)),
    "two leaders while the type changes": Search(
        faults=Faults(handovers=1, stale_reads=1), script=CHANGE_OF_TYPE
    ),
    "slow processes": Search(faults=Faults(slow=3, lost_answers=1)),
    "many Services that share a listing, crashes and lost answers": Search(
        faults=Faults(crashes=1, lost_answers=2), physics=Physics(shares_listing=True)
    ),
    "many Services that share a listing, and two leaders": Search(
        faults=Faults(handovers=1, stale_reads=1), physics=Physics(shares_listing=True)
    ),
    "a token of another project": Search(faults=Faults(swaps=2, lost_answers=1)),
    "a protected balancer": Search(faults=Faults(protections=1, crashes=1, lost_answers=1)),
    "a balancer that is deleted in the console": Search(faults=Faults(removals=1, lost_answers=1)),
    "a record that a user removes": Search(faults=Faults(wipes=1, lost_answers=1)),
    "a record that a user removes before a crash": Search(
        faults=Faults(wipes=1, lost_answers=1, crashes=1), script=BEGIN
    ),
    "a record that a user forges": Search(faults=Faults(forgeries=1, crashes=1)),
    "balancers that fail, of which some have served": Search(
        faults=Faults(breakages=2, crashes=1), physics=Physics(builds_slowly=True)
    ),
    "an address of another controller": Search(
        faults=Faults(overwrites=1, crashes=1), physics=Physics(builds_slowly=True)
    ),
    "two accounts of one project, and a record that names the other one": Search(
        faults=Faults(forged_accounts=1, crashes=1), other_project=1
    ),
    "two accounts of one project, and a create of unknown result": Search(
        faults=Faults(forged_accounts=1, lost_answers=1), script=BEGIN, other_project=1
    ),
    "two accounts of two projects, and a record that names the other one": Search(
        faults=Faults(forged_accounts=1, crashes=1), script=BEGIN, other_project=2
    ),
    "two accounts of one project, of which the other one gets the Service": Search(
        faults=Faults(wipes=1, crashes=1), script=CHANGE_OF_CLASS, other_project=1
    ),
    "two accounts of two projects, of which the other one gets the Service": Search(
        faults=Faults(wipes=1, crashes=1), script=CHANGE_OF_CLASS, other_project=2
    ),
}


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """How the rule is left out, and the violation that follows."""

    faults: Faults
    violation: str
    script: tuple[str, ...] = LIFE
    other_project: int | None = None
    physics: Physics = Physics()
    patches: Mapping[str, Any] = {}  # functions and constants of the core by name

    @contextmanager
    def left_out(self) -> Iterator[Model[World]]:
        """Yield the model to search without the rule."""
        with patch_core((plan_step, plan_end, step_parts, balancer_answers), self.patches):
            yield build_model(
                self.faults, script=self.script, physics=self.physics, other_project=self.other_project
            )


# ---- the clauses without their rule

_plan_absent, _plan_removal = plan_step._plan_absent, plan_end.plan_removal
_get_balancer = balancer_answers.get_balancer


def _create_without_record(view: Any, record: Any) -> Any:
    step = _plan_absent(view, record)
    is_first = record is None and isinstance(step, RecordBalancer) and not step.record.id
    return plan_step._plan_create(view) if is_first else step


def _create_by_any_deadline(view: Any, record: Any) -> bool:
    return record.create_deadline is not None and step_parts.has_needed_finalizer(view)


def _create_at_any_time(view: Any, record: Any) -> bool:
    attempt = get_own_attempt(view, record)
    return attempt is not None and attempt.state == "unsent" and step_parts.has_needed_finalizer(view)


def _find_owned(view: Any, balancer_id: str) -> Any:
    found = _get_balancer(view, balancer_id)
    return replace(found, owner=view.owner) if isinstance(found, Balancer) else found


def _ignore_protection(view: Any, found: Balancer, **options: Any) -> Any:
    return _plan_removal(view, replace(found, is_protected=False), **options)


def _is_current_before_writes(view: Any, answer: Any) -> Any:
    return answer.generation == view.credential.generation and view.now - answer.began_at < ANSWER_AGE


def _is_current_for_any_credential(view: Any, answer: Any) -> Any:
    return answer.began_at >= view.memory.valid_from and view.now - answer.began_at < ANSWER_AGE


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _no_doubles(*_: Any) -> tuple[()]:
    return ()


def _allow_all(_: Any, step: Any) -> Any:
    return step


def _has_addresses(view: Any, _found: Any) -> bool:
    return bool(view.service.status.load_balancer.ingress)


def _has_failed(_view: Any, _record: Any, found: Balancer) -> bool:
    return found.has_failed


def _is_selected_without_id(service: KubeService, account: BalancerAccount) -> bool:
    """As if a balancer that is recorded were always to end."""
    record = read_balancer_record(service, NOW)
    return is_selected(service, account) and (record is None or not record.id)


def _begin_beside(view: Any, _: Any) -> Any:
    return plan_step._plan_present(view, None)


def _no_other_account(*_: Any) -> str:
    return ""


_list_all: Callable[[Any, Any], Any] = lambda _, listing: listing.answer  # noqa: E731

_ORPHAN: Final = "no finalizer leads to it"
_DOUBLE: Final = "created beside another one"
_ENDLESS: Final = "the steps of progress never end"
RULES: Final[Mapping[str, Rule]] = {
    "finalizer and record are confirmed before the create": Rule(
        faults=Faults(), violation=_ORPHAN, patches={"_plan_absent": _create_without_record}
    ),
    "only the process that recorded the deadline creates": Rule(
        faults=Faults(crashes=1), violation=_DOUBLE, patches={"_may_create": _create_by_any_deadline}
    ),
    "the create ends by the recorded deadline": Rule(
        faults=Faults(slow=3, lost_answers=1),
        violation=_ORPHAN,
        patches={"_may_create": _create_at_any_time},
    ),
    "the tags are part of the create": Rule(
        faults=Faults(), violation=_ORPHAN, physics=Physics(tags_in_create=False)
    ),
    "a create of unknown result is listed before it is repeated": Rule(
        faults=Faults(lost_answers=1), violation=_DOUBLE, patches={"prove_unsettled_create": _nothing}
    ),
    "that listing begins 60 s past the deadline": Rule(
        faults=Faults(lost_answers=1), violation=_ORPHAN, patches={"MAX_LATENESS": timedelta(0)}
    ),
    "the oldest balancer is recorded if none is": Rule(
        faults=Faults(crashes=1), violation=_DOUBLE, patches={"list_own": _no_doubles}
    ),
    "a balancer that is not the recorded one is deleted": Rule(
        faults=Faults(wipes=1, crashes=1, lost_answers=1),
        script=BEGIN,
        violation="the Service has 2 balancers",
        patches={"_end_doubles": _nothing},
    ),
    "what is not found needs a witness": Rule(
        faults=Faults(swaps=1), violation=_ORPHAN, patches={"_find_witness": _nothing}
    ),
    "the recorded balancer is proven gone before the finalizer goes": Rule(
        faults=Faults(swaps=1), violation=_ORPHAN, patches={"prove_gone": _nothing}
    ),
    "no balancer is listed when the finalizer goes": Rule(
        faults=Faults(lost_answers=1), violation=_ORPHAN, patches={"_end_listed": _nothing}
    ),
    "a recorded balancer with other tags is not touched": Rule(
        faults=Faults(forgeries=1), violation="foreign balancer", patches={"get_balancer": _find_owned}
    ),
    "a listed balancer with other tags is not touched": Rule(
        faults=Faults(),
        violation="foreign balancer",
        patches={"list_own": _list_all, "get_balancer": _find_owned},
    ),
    "the account is one of the tags": Rule(
        faults=Faults(forged_accounts=1),
        violation="account other writes to b1 of account prod",
        physics=Physics(account_in_tags=False),
        other_project=1,
    ),
    "the finalizer stays while another account has a balancer": Rule(
        faults=Faults(forged_accounts=1),
        violation=_ORPHAN,
        patches={"find_other_account": _no_other_account},
        other_project=1,
    ),
    "an account ends what has its tags, whatever the record says": Rule(
        faults=Faults(wipes=1),
        script=CHANGE_OF_CLASS,
        violation="the Service has 2 balancers",
        patches={"end_tagged": _nothing},
        other_project=2,
    ),
    "only a Service that ends or changes loses its balancer": Rule(
        faults=Faults(), violation="its Service wants it", patches={"is_selected": _is_selected_without_id}
    ),
    "an account begins only when the former one has ended": Rule(
        faults=Faults(),
        script=CHANGE_OF_CLASS,
        violation=_DOUBLE,
        patches={"_plan_beside": _begin_beside},
        other_project=1,
    ),
    "only a balancer that was never ready is replaced": Rule(
        faults=Faults(breakages=1),
        violation="has served, and is deleted",
        physics=Physics(builds_slowly=True),
        patches={"_may_replace": _has_failed},
    ),
    "only addresses of the account go at the end": Rule(
        faults=Faults(overwrites=1),
        violation="the address of another controller goes",
        physics=Physics(builds_slowly=True),
        patches={"is_own_status": _has_addresses},
    ),
    "a protected balancer is released": Rule(
        faults=Faults(protections=1), violation=_ENDLESS, patches={"plan_removal": _ignore_protection}
    ),
    "answers from before a write are void": Rule(
        faults=Faults(forgeries=1), violation=_ORPHAN, patches={"is_current": _is_current_before_writes}
    ),
    "answers to another credential are void": Rule(
        faults=Faults(swaps=1), violation=_ENDLESS, patches={"is_current": _is_current_for_any_credential}
    ),
    "a write begins only if the Lease outlives it": Rule(
        faults=Faults(handovers=1), violation="the other one leads", patches={"allow_write": _allow_all}
    ),
    "patches are fenced by the resourceVersion": Rule(
        faults=Faults(handovers=1, stale_reads=1),
        violation=_ORPHAN,
        script=CHANGE_OF_TYPE,
        physics=Physics(fences_patches=False),
    ),
}
