"""A load balancer that a Service names by its id: prepared by an operator, or of another controller."""

from typing import Any

import pytest
from msgspec.structs import replace

from libs.clouds.balancers import Balancer, InvalidField
from libs.clouds.instances import NotFound
from libs.common.contract.kube_service import CLEANUP_FINALIZER, HAND_BACK_ANNOTATION, USE_ANNOTATION
from services.cloud.core.balancers.balancer_record import BalancerAccount, BalancerRecord
from services.cloud.core.balancers.balancer_status import describe_write
from services.cloud.core.balancers.balancer_steps import (
    BlockedCondition,
    ChangeBalancer,
    CreateBalancer,
    DeleteBalancer,
    NotSelected,
    ReadBalancer,
    RecordBalancer,
    ReleaseService,
    Settled,
    Wait,
    WriteStatus,
)
from services.cloud.core.balancers.plan_step import plan_step
from services.cloud.core.balancers.service_fields import build_request
from tests.clouds.balancers import (
    ADDRESS,
    ANCHOR,
    OTHER_OWNER,
    OWNER,
    VersionPlanner,
    make_balancer,
    make_invalid,
    make_listing,
    make_lookup,
    make_service,
    make_view,
)

RECORDED = BalancerRecord(account="prod", anchor=ANCHOR, id="1")
USE = {USE_ANNOTATION: "1"}
BACK = {HAND_BACK_ANNOTATION: "1"}
EMPTY = make_listing()
PREPARED = make_balancer(owner=None)
NATIVE = make_balancer(owner=None, has_foreign_tags=True, native_uid=OWNER.service_uid)
TAG = ChangeBalancer(balancer_id="1", change="tag")
DEFAULT = BalancerAccount(name="prod", load_balancer_class="talos-ccm/prod", is_default=True)


class Picky(VersionPlanner):
    """A cloud that cannot use any load balancer."""

    def plan_adoption(self, *_: Any) -> Any:
        return InvalidField(field="load balancer 1", reason="it has other ports")


def plan(service: Any, found: Balancer | NotFound, **changes: Any) -> Any:
    fields: dict[str, Any] = {"listing": EMPTY, "account": DEFAULT}
    return plan_step(make_view(service, make_lookup("1", found), **(fields | changes)))


def blocked(step: Any) -> str:
    assert isinstance(step, WriteStatus), step
    assert step.condition is not None
    return f"{step.condition.reason}: {step.condition.message}"


def make_handed_back(**changes: Any) -> Any:
    return make_service(own_class=None, ingress=(ADDRESS,), annotations=BACK, **changes)


@pytest.mark.parametrize("found", [PREPARED, NATIVE])
def test_a_named_balancer_is_recorded_with_the_finalizer_before_it_is_tagged(found: Balancer):
    service = make_service(annotations=USE)
    view = make_view(service, listing=EMPTY)
    assert plan_step(view) == ReadBalancer("1")
    assert plan(service, found) == RecordBalancer(RECORDED)
    recorded = make_service(annotations=USE, record=RECORDED)
    assert plan(recorded, found) == TAG
    assert isinstance(plan(recorded, make_balancer()), WriteStatus)  # its addresses


def test_nothing_is_created_while_the_service_names_a_balancer():
    step = plan(make_service(annotations=USE), NotFound())
    assert blocked(step).startswith("InvalidField")
    assert "the project has no load balancer 1" in blocked(step)
    assert not build_request(make_service(annotations=USE)).creates_balancer
    unnamed = plan(make_service(), NotFound())
    assert isinstance(unnamed, RecordBalancer | CreateBalancer)


@pytest.mark.parametrize(
    "changes",
    [
        {"owner": OTHER_OWNER},
        {"owner": None, "has_foreign_tags": True},
        {"owner": None, "has_foreign_tags": True, "native_uid": OTHER_OWNER.service_uid},
        {"owner": OWNER, "has_foreign_tags": True, "native_uid": OWNER.service_uid},
    ],
)
@pytest.mark.parametrize("record", [None, RECORDED])
def test_a_balancer_that_another_one_tagged_is_not_touched(changes: dict[str, Any], record: Any):
    service = make_service(annotations=USE, record=record)
    assert blocked(plan(service, make_balancer(**changes))).startswith("OtherController")


def test_a_balancer_without_tags_is_not_touched_unless_it_is_named():
    for annotations in ({}, {USE_ANNOTATION: "2"}):
        step = plan(make_service(annotations=annotations, record=RECORDED), PREPARED)
        assert blocked(step).startswith("OtherController")


def test_a_balancer_that_the_cloud_cannot_use_for_the_service_is_not_tagged():
    service = make_service(annotations=USE)
    assert "it has other ports" in blocked(plan(service, PREPARED, planner=Picky()))
    assert blocked(plan(service, PREPARED, parsed=make_invalid())).startswith("InvalidField")


def test_addresses_of_another_controller_stop_the_use_of_a_prepared_balancer_only():
    service = make_service(annotations=USE, ingress=(replace(ADDRESS, ip="198.51.100.1"),))
    assert blocked(plan(service, PREPARED)).startswith("OtherController")
    assert plan(service, NATIVE) == RecordBalancer(RECORDED)


def test_a_service_with_a_balancer_tells_that_it_does_not_use_the_named_one():
    service = make_service(annotations={USE_ANNOTATION: "2"}, record=RECORDED, ingress=(ADDRESS,))
    step = plan(service, make_balancer(), listing=make_listing(make_balancer()))
    assert isinstance(step, Wait)
    assert isinstance(step.reason, Settled)
    assert step.reason.warnings == ("load balancer 2 is not used: the Service has load balancer 1",)


def test_a_balancer_that_is_taken_over_ends_with_its_service_and_a_prepared_one_stays():
    service = make_service(annotations=USE, record=RECORDED, is_deleting=True)
    assert plan(service, make_balancer()) == DeleteBalancer("1")
    untagged = plan(service, make_balancer(is_protected=True))
    assert untagged == ChangeBalancer(balancer_id="1", change="untag", is_release=True)
    assert plan(service, PREPARED) == ReleaseService(kept="1")


def test_a_balancer_is_handed_back_with_its_finalizer_and_addresses():
    service = make_handed_back(record=RECORDED)
    assert plan(service, make_balancer()) == ChangeBalancer(balancer_id="1", change="hand back")
    release = plan(service, NATIVE)
    assert release == ReleaseService(handed_back="1")
    (event,) = describe_write(release, None)
    assert "handed back" in event.message
    told = BlockedCondition(reason="OtherController", message="another one")
    assert plan(make_handed_back(record=RECORDED, condition=told), NATIVE) == WriteStatus(
        ingress=None, condition=None
    )
    assert "no load balancer 1" in blocked(plan(service, NotFound()))
    assert blocked(plan(service, make_balancer(owner=OTHER_OWNER))).startswith("OtherController")


@pytest.mark.parametrize("is_deleting", [True, False])
def test_a_service_that_was_handed_back_is_left_alone(is_deleting: bool):
    service = make_handed_back(finalizer=True, is_deleting=is_deleting)
    assert service.metadata.finalizers == (CLEANUP_FINALIZER,)
    assert plan(service, NATIVE) == Wait(None, NotSelected())


def test_a_service_with_a_class_or_another_id_is_not_handed_back():
    classed = make_service(annotations=BACK, record=RECORDED, ingress=(ADDRESS,))
    other = make_service(annotations={HAND_BACK_ANNOTATION: "2"}, record=RECORDED, ingress=(ADDRESS,))
    for service in (classed, other):
        step = plan(service, make_balancer(), listing=make_listing(make_balancer()))
        assert isinstance(step, Wait)
        assert isinstance(step.reason, Settled)
    ending = make_handed_back(record=RECORDED, is_deleting=True)
    assert plan(ending, make_balancer()) == WriteStatus(ingress=(), condition=None)
