"""Decides the next step of a load balancer that a Service names by its id, or that it hands back."""

from libs.clouds.balancers import Balancer, InvalidField
from libs.clouds.instances import NotFound, Unanswered
from libs.common.contract.kube_service import HAND_BACK_ANNOTATION, USE_ANNOTATION
from services.cloud.core.balancers.balancer_answers import (
    View,
    find_next_listing,
    get_balancer,
    get_pause,
    list_own,
)
from services.cloud.core.balancers.balancer_record import BalancerRecord
from services.cloud.core.balancers.balancer_status import find_condition, read_ingress
from services.cloud.core.balancers.balancer_steps import (
    ChangeBalancer,
    ForeignController,
    InvalidFields,
    NotSelected,
    RecordBalancer,
    ReleaseService,
    Unready,
    Wait,
    WriteStatus,
)
from services.cloud.core.balancers.step_parts import (
    FOREIGN_ADDRESSES,
    AnyStep,
    build_record,
    make_first,
    wait_for_other,
)


def get_named(view: View) -> str:
    """Return the id of the balancer that the Service names, "" without one."""
    return view.service.metadata.annotations.get(USE_ANNOTATION, "")


def plan_use(view: View) -> AnyStep:
    """Record the balancer that the Service names, if it can be used; its tags follow."""
    found = get_balancer(view, get_named(view))
    if isinstance(found, NotFound):
        return _wait_for_user(view, USE_ANNOTATION, f"the project has no load balancer {get_named(view)}")
    if not isinstance(found, Balancer):
        return found
    if read_ingress(view.service) and not found.native_uid:
        return Wait(None, ForeignController(FOREIGN_ADDRESSES))
    step = plan_adoption(view, found)
    return RecordBalancer(build_record(view, id=found.id)) if isinstance(step, ChangeBalancer) else step


def plan_adoption(view: View, found: Balancer) -> AnyStep:
    """Tag a balancer that the Service names, and that has no tag of another Service."""
    is_free = found.native_uid == view.owner.service_uid or not found.has_foreign_tags
    if found.id != get_named(view) or found.owner is not None or not is_free:
        return wait_for_other(view, found)
    parsed = view.parsed
    if isinstance(parsed, Unanswered):
        return Wait(view.now + get_pause(parsed), Unready(parsed))
    if parsed.invalid:
        return Wait(None, InvalidFields(parsed.invalid))
    targets = view.selection.plan(())
    change = view.planner.plan_adoption(parsed.desired, targets, found, view.owner)
    if isinstance(change, InvalidField):
        return Wait(find_next_listing(view), InvalidFields((change,)))
    return make_first(view, found, [ChangeBalancer(balancer_id=found.id, change=change)])


def plan_hand_back(view: View, record: BalancerRecord | None) -> AnyStep | None:
    """Return the next step of a Service whose balancer goes to the cloud's own controller; None of others.

    That controller has no Service with a class. It finds the balancer by its tag, and keeps the finalizer.
    """
    named = view.service.metadata.annotations.get(HAND_BACK_ANNOTATION, "")
    if not named or view.service.spec.load_balancer_class is not None:
        return None
    if record is None:
        return None if list_own(view, view.listing) else Wait(None, NotSelected())
    if record.id != named or view.service.metadata.deletion_timestamp:
        return None
    found = get_balancer(view, named)
    if isinstance(found, NotFound):
        return _wait_for_user(view, HAND_BACK_ANNOTATION, f"the project has no load balancer {named}")
    if not isinstance(found, Balancer):
        return found
    if found.owner is None and found.native_uid == view.owner.service_uid:
        if find_condition(view.service) is not None:
            return WriteStatus(ingress=None, condition=None)
        return ReleaseService(handed_back=found.id)
    if found.owner != view.owner or found.has_foreign_tags:
        return wait_for_other(view, found)
    change = view.planner.plan_hand_back(found, view.owner.service_uid)
    if isinstance(change, InvalidField):
        return _wait_for_user(view, HAND_BACK_ANNOTATION, str(change))
    return make_first(view, found, [ChangeBalancer(balancer_id=found.id, change=change)])


def _wait_for_user(view: View, annotation: str, reason: str) -> Wait:
    return Wait(find_next_listing(view), InvalidFields((InvalidField(field=annotation, reason=reason),)))
