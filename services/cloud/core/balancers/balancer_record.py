"""The record of a load balancer on its Service, and whether a Service belongs to an account."""

from datetime import datetime, timedelta
from typing import Annotated, Final

import msgspec

from libs.common.contract.instances import InstanceAnchor
from libs.common.contract.kube_service import BALANCER_ANNOTATION, LOAD_BALANCER, KubeService
from libs.common.contract.timestamp import Timestamp
from libs.common.json_errors import JSON_ERRORS

_MAX_LENGTH: Final = 2048  # characters; a record has some hundred
# A deadline is at most some minutes ahead. A later one is not ours, and would prevent the creation for ever.
_MAX_AHEAD: Final = timedelta(hours=1)


class BalancerAccount(msgspec.Struct, frozen=True, kw_only=True):
    """The account of this process, and the Services for which it creates load balancers."""

    name: str
    load_balancer_class: str
    is_default: bool = False  # also Services without a class


class BalancerRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which account has a balancer for the Service, or may have one.

    With `id`, the balancer exists, or its deletion is not proven yet. Without it, `create_deadline` is the
    end of the request that may have created one.
    """

    account: Annotated[str, msgspec.Meta(min_length=1, max_length=63)]
    anchor: InstanceAnchor | None = None  # marks the project (decision 37)
    id: Annotated[str, msgspec.Meta(max_length=256)] = ""
    create_deadline: Timestamp | None = None
    # This account has created it, and has not seen it ready, so no client has used it.
    is_building: bool = False


def read_balancer_record(service: KubeService, now: datetime) -> BalancerRecord | None:
    """Return the Service's record; None if there is none that can be ours.

    A user who may edit Services may write any text. So tags identify a balancer, and a record never does.
    """
    text = service.metadata.annotations.get(BALANCER_ANNOTATION, "")
    if not 0 < len(text) <= _MAX_LENGTH:
        return None
    try:
        record = msgspec.json.decode(text, type=BalancerRecord)
    except JSON_ERRORS:
        return None
    has_one = bool(record.id) != (record.create_deadline is not None)
    return record if has_one and (record.create_deadline or now) <= now + _MAX_AHEAD else None


def encode_balancer_record(record: BalancerRecord) -> str:
    """Return the value of the annotation: equal records give equal text."""
    return msgspec.json.encode(record, order="sorted").decode()


def explain_lost_record(service: KubeService, record: BalancerRecord) -> str:
    """Return why the Service does not show a record that the API server has confirmed; "" if it does."""
    is_kept = service.metadata.annotations.get(BALANCER_ANNOTATION) == encode_balancer_record(record)
    if is_kept and service.needed_finalizer in service.metadata.finalizers:
        return ""
    return (
        f"Kubernetes does not keep the record of the load balancer: a webhook or another client changes the "
        f"annotation {BALANCER_ANNOTATION} or the finalizer {service.needed_finalizer}"
    )


def is_selected(service: KubeService, account: BalancerAccount) -> bool:
    """Return whether type and class of the Service select this account. Another one may have its balancer."""
    if service.spec.type != LOAD_BALANCER:
        return False
    own_class = service.spec.load_balancer_class
    return account.is_default if own_class is None else own_class == account.load_balancer_class
