"""What the search of routes visits, and each rule that it misses when the rule is left out."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

import msgspec

from libs.clouds.instances import NotFound
from libs.clouds.routes import RouteTable
from services.cloud.core.routes import plan_routes, route_record
from services.cloud.core.routes.route_record import RecordedRoute
from services.cloud.core.routes.route_view import CreateRoute, InstanceLookup, RouteView, WriteRecord
from tests.model.clouds.core_patches import patch_core
from tests.model.clouds.route_moves import build_model
from tests.model.clouds.route_states import END, MOVE, RECREATION, RETURN, REUSE, Faults, Physics, World
from tests.model.search import Model

_CORE: Final = (plan_routes, route_record, RouteView)
# Shorter times make fewer states. Their order stays: a create ends within the time that the record covers,
# and no answer counts longer than a minute.
_TIMES: Final[Mapping[str, Any]] = {
    "_LISTING_AGE": timedelta(minutes=1),
    "_RECORD_AHEAD": timedelta(minutes=1),
}


MIN_STATES: Final = 500  # fewer: the model has lost steps


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """One search: what may fail, and what happens to the cluster."""

    faults: Faults
    script: tuple[str, ...]

    @contextmanager
    def open_model(self) -> Iterator[Model[World]]:
        """Yield the model to search."""
        with patch_core(_CORE, _TIMES):
            yield build_model(self.faults, script=self.script)


SEARCHES: Final[Mapping[str, Search]] = {
    "two leaders, while a pod CIDR is used again": Search(faults=Faults(handovers=1), script=REUSE),
    "two leaders and a lost answer": Search(faults=Faults(handovers=1, lost_answers=1), script=END),
    "two leaders and a crash": Search(faults=Faults(handovers=1, crashes=1), script=RECREATION),
    "crashes and lost answers": Search(faults=Faults(crashes=1, lost_answers=2), script=REUSE),
    "a Node that comes back": Search(faults=Faults(crashes=1, lost_answers=1), script=RETURN),
    "a slow process and a lost answer": Search(faults=Faults(slow=2, lost_answers=1), script=END),
    "a token of another project": Search(faults=Faults(swaps=2), script=END),
    "missing messages": Search(faults=Faults(losses=1, crashes=1), script=MOVE),
    "a record that is removed": Search(faults=Faults(wipes=1, crashes=1), script=REUSE),
}


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """How the rule is left out, and the violation that follows."""

    faults: Faults
    script: tuple[str, ...] = END
    violation: str
    physics: Physics = Physics()
    patches: Mapping[str, Any] = {}  # functions and constants of the core by name

    @contextmanager
    def left_out(self) -> Iterator[Model[World]]:
        """Yield the model to search without the rule."""
        with patch_core(_CORE, {**_TIMES, **self.patches}):
            yield build_model(self.faults, script=self.script, physics=self.physics)


# ---- the clauses without their rule

_plan_creation, _plan_deletion, _plan = (
    plan_routes._plan_creation,
    plan_routes._plan_deletion,
    plan_routes.plan_route_step,
)


def _create_without_record(view: Any, nodes: Any, table: Any) -> Any:
    step = _plan_creation(view, nodes, table)
    if not isinstance(step, WriteRecord):
        return step
    (entry, *_) = (each for each in step.record.entries if each.create_deadline)
    return CreateRoute(entry.route, "web-1")


def _delete_any(view: RouteView, nodes: Any, table: RouteTable) -> Any:
    """Every route counts as ours, as for k8s.io/cloud-provider."""
    all_of_them = (RecordedRoute(route=each, instance_id="9") for each in table.routes)
    return _plan_deletion(
        msgspec.structs.replace(view, record=view.record.update(*all_of_them)), nodes, table
    )


def _delete_without_lookup(view: RouteView, nodes: Any, table: RouteTable) -> Any:
    gone = {
        each.instance_id: InstanceLookup(
            began_at=view.now, ended_at=view.now, generation=view.generation, answer=NotFound()
        )
        for each in view.record.entries
    }
    return _plan_deletion(msgspec.structs.replace(view, lookups=gone), nodes, table)


def _plan_while_incomplete(view: RouteView) -> Any:
    return _plan(msgspec.structs.replace(view, is_complete=True))


def _is_current_for_any_credential(
    view: RouteView, answer: Any, most: timedelta = timedelta(minutes=1)
) -> bool:
    return bool(view.led_since <= answer.began_at and view.now < answer.find_end(most))


def _at_once(*_: Any) -> bool:
    return True


def _nothing(*_: Any) -> None:
    return None


RULES: Final[Mapping[str, Rule]] = {
    "a route is recorded before it is created": Rule(
        faults=Faults(),
        violation="the record does not have it",
        patches={"_plan_creation": _create_without_record},
    ),
    "only recorded routes are deleted": Rule(
        faults=Faults(), violation="of another owner is deleted", patches={"_plan_deletion": _delete_any}
    ),
    "a record stays until its create cannot take effect any more": Rule(
        faults=Faults(lost_answers=1),
        violation="the record does not have it",
        patches={"is_settled": _at_once},
    ),
    "this is 60 s past the deadline": Rule(
        faults=Faults(lost_answers=1),
        violation="the record does not have it",
        patches={"MAX_LATENESS": timedelta(0)},
    ),
    "a write begins only if the Lease outlives it": Rule(
        faults=Faults(handovers=1), violation="the other one leads", patches={"_wait_for_lease": _nothing}
    ),
    "a route goes only if its server is gone": Rule(
        faults=Faults(), violation="may register again", patches={"_plan_deletion": _delete_without_lookup}
    ),
    "answers to another credential are void": Rule(
        faults=Faults(swaps=1),
        violation="may register again",
        patches={"is_current": _is_current_for_any_credential},
    ),
    "while messages are missing, nothing is done": Rule(
        faults=Faults(losses=1),
        script=MOVE,
        violation="is deleted, and a Node needs it",
        patches={"plan_route_step": _plan_while_incomplete},
    ),
    "the record is fenced by its resourceVersion": Rule(
        faults=Faults(handovers=1),
        script=REUSE,
        violation="the record does not have it",
        physics=Physics(fences_record=False),
    ),
    "the network is read after each write": Rule(
        faults=Faults(),
        violation="the steps of progress never end",
        physics=Physics(reads_after_writes=False),
    ),
}
