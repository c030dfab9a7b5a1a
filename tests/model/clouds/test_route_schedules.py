"""No schedule deletes a route that is needed or another's; each rule that is left out is found."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from libs.clouds.instances import NotFound
from libs.clouds.routes import Route, RouteTable
from services.cloud.core.routes.route_record import RecordedRoute, RouteRecord
from services.cloud.core.routes.route_view import InstanceLookup, RouteView, TableAnswer
from tests.model.clouds.route_world import RouteWorld, Violation, run_schedule

_SCHEDULES = 300


def test_each_node_gets_its_route_and_no_other_is_touched():
    for seed in range(_SCHEDULES):
        try:
            run_schedule(seed)
        except Violation as violation:
            pytest.fail(f"schedule {seed}: {violation}")


def test_an_idle_network_is_read_once_a_minute():
    world = RouteWorld(1)
    world.faults = 0.0
    for _ in range(3):
        world.join()
    world.run_until_waiting()
    before = world.reads
    for _ in range(3600):
        world.pass_time(1)
        world.run_until_waiting()
    assert 59 <= world.reads - before <= 60


class KeepTable:
    """A network that the credential does not find is taken for what it was."""

    def __init__(self) -> None:
        self._last: TableAnswer | None = None

    def __call__(self, view: RouteView) -> RouteView:
        if view.table is not None and isinstance(view.table.answer, NotFound) and self._last is not None:
            answer = self._last.answer
            return replace(view, table=replace(view.table, answer=answer))
        self._last = view.table
        return view


def list_routes(view: RouteView) -> frozenset[Route]:
    answer = view.table.answer if view.table is not None else None
    return answer.routes if isinstance(answer, RouteTable) else frozenset()


def without_completeness(view: RouteView) -> RouteView:
    return replace(view, is_complete=True)


def without_ownership(view: RouteView) -> RouteView:
    """Every route in a pod CIDR counts as ours, as for k8s.io/cloud-provider."""
    found = list_routes(view)
    return replace(
        view, record=view.record.update(*(RecordedRoute(route=each, instance_id="1") for each in found))
    )


def without_lookup(view: RouteView) -> RouteView:
    """A Node that is missing is enough to delete its route."""
    lookups = {
        each.instance_id: InstanceLookup(
            began_at=view.now, ended_at=view.now, generation=view.generation, answer=NotFound()
        )
        for each in view.record.entries
    }
    return replace(view, lookups=lookups)


def without_lateness(view: RouteView) -> RouteView:
    """The record of a create with an unknown result goes at once."""
    entries = tuple(replace(each, create_deadline=None) for each in view.record.entries)
    ahead = {each.route: each.create_deadline for each in view.record.entries}
    table = list_routes(view)
    kept = tuple(
        replace(each, create_deadline=ahead[each.route])
        if any(node.spec.pod_cidr == each.route.destination for node in view.nodes) or each.route in table
        else each
        for each in entries
    )
    return replace(view, record=RouteRecord(entries=kept))


def without_generations(view: RouteView) -> RouteView:
    """Answers to a former credential count."""
    lookups = {key: replace(each, generation=view.generation) for key, each in view.lookups.items()}
    table = None if view.table is None else replace(view.table, generation=view.generation)
    listing = None if view.listing is None else replace(view.listing, generation=view.generation)
    return replace(view, lookups=lookups, table=table, listing=listing)


def without_remnants(view: RouteView) -> RouteView:
    """A destination that a port allows without a route does not count."""
    answer = view.table.answer if view.table is not None else None
    if view.table is None or not isinstance(answer, RouteTable):
        return view
    counted = replace(answer, partial=answer.partial & answer.routes)
    return replace(view, table=replace(view.table, answer=counted))


@pytest.mark.parametrize(
    ("make_distortion", "violation"),
    [
        (lambda: without_completeness, "is deleted"),
        (lambda: without_ownership, "of another owner is deleted"),
        (lambda: without_lookup, "may register again"),
        (lambda: without_lateness, "not recorded"),
        (lambda: without_generations, "is deleted"),
        (KeepTable, "is deleted"),
        (lambda: without_remnants, "is left"),
    ],
    ids=["complete table", "record", "lookup", "lateness", "generation", "witness", "parts"],
)
def test_a_rule_that_is_left_out_is_found(
    make_distortion: Callable[[], Callable[[RouteView], RouteView]], violation: str
):
    for seed in range(_SCHEDULES):
        try:
            run_schedule(seed, make_distortion())
        except Violation as found:
            if violation in str(found):
                return
    pytest.fail("no schedule needs the rule")
