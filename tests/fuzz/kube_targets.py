"""What kube-apiserver sends, and annotations that any writer of a Node may change."""

from functools import partial
from typing import Any, Final

import msgspec

from libs.common.contract.ip_addresses import InvalidNodeIP, parse_node_ips, pick_one_per_family
from libs.common.contract.kube_service import BALANCER_ANNOTATION, CLEANUP_FINALIZER, KubeService
from libs.common.contract.node import Node, ObjectMeta, trim_node
from libs.common.contract.protected_annotation import compute_digest
from libs.common.contract.signing_request import SigningRequest
from libs.common.json_errors import JSON_ERRORS
from libs.common.kube.api import NODES, SERVICES, SIGNING_REQUESTS
from libs.common.kube.errors import KubeError, error_from
from libs.common.kube.lease import read_lease
from libs.common.kube.objects import ConfigMap, Resource, UnreadableObject, read_page
from libs.common.kube.request import Request
from libs.common.kube.watch_events import Bookmark, ListAgain, decode_watch_event
from services.cloud.core.balancers.balancer_record import encode_balancer_record, read_balancer_record
from services.ipam.core.pages import (
    DATA_KEY,
    Page,
    UnreadablePage,
    decode_page,
    encode_page,
    page_name,
)
from services.labeler.core.plan.field_ownership import list_machine_config_keys
from services.labeler.core.plan.ownership_record import read_ownership_record
from services.lifecycle.core.deletion_limit import BudgetDenial, DeletionLimit, grant_deletion
from tests.builders import NOW, make_kube_service, make_node, make_request
from tests.fuzz.target import Target

REQUEST: Final = Request(verb="watch", resource="objects", path="/")
RESOURCES: Final[tuple[Resource[Any], ...]] = (
    msgspec.structs.replace(NODES, transform=trim_node),
    SIGNING_REQUESTS,
    SERVICES,
)
_RANGE: Final = "10.240.0.0/12"


def _text(data: bytes) -> str:
    """Texts in Kubernetes objects are UTF-8."""
    return data.decode(errors="replace")


def _watch_event(data: bytes) -> None:
    for resource in RESOURCES:
        unreadable: list[UnreadableObject] = []
        try:
            event = decode_watch_event(data, resource, REQUEST, unreadable.append)
        except (ListAgain, KubeError):
            continue
        assert (event is None) == bool(unreadable)
        if event is not None and not isinstance(event, Bookmark):
            _check_object(event.item)


def _list_page(data: bytes) -> None:
    for resource in RESOURCES:
        for item in read_page(data, resource, REQUEST, lambda _: None).items:
            _check_object(item)


def _check_object(item: Node | SigningRequest | KubeService) -> None:
    assert item.metadata.resource_version is not None
    assert item.resource_version_number >= 0
    assert msgspec.json.decode(msgspec.json.encode(item), type=type(item)) == item


def _error(data: bytes) -> None:
    for status in (400, 409, 422, 429, 500):
        error = error_from(status, data, request="list nodes", retry_after=_text(data)[:20])
        assert error.status == status
        assert error.retry_after_seconds is None or error.retry_after_seconds >= 0


def _lease(data: bytes) -> None:
    lease = read_lease(data)
    assert isinstance(lease.holder, str)
    assert lease.transitions >= 0 or lease.transitions < 0


def _node_ips(data: bytes) -> None:
    found = parse_node_ips(_text(data))
    if isinstance(found, InvalidNodeIP):
        assert found.reason.isprintable()
        assert len(found.reason) < 1024
    else:
        assert 1 <= len(pick_one_per_family(found, prefer_ipv6=True)) <= 2


def _claims(data: bytes) -> None:
    read = decode_page(ConfigMap(metadata=ObjectMeta(name=page_name(_RANGE)), data={DATA_KEY: _text(data)}))
    if isinstance(read, UnreadablePage):
        assert read.reason
        return
    again = decode_page(encode_page(read))
    assert isinstance(again, Page)
    assert again.claims == read.claims


def _owned_keys(data: bytes) -> None:
    node = make_node(annotations={"talos.dev/owned-labels": _text(data)})
    assert all(isinstance(key, str) for key in list_machine_config_keys(node, "labels"))


def _ownership(data: bytes) -> None:
    from libs.common.contract.node import FIELD_OWNERSHIP_ANNOTATION, FIELD_OWNERSHIP_DIGEST_LABEL

    text = _text(data)
    node = make_node(
        labels={FIELD_OWNERSHIP_DIGEST_LABEL: compute_digest(text)},
        annotations={FIELD_OWNERSHIP_ANNOTATION: text},
    )
    record = read_ownership_record(node)
    assert record.state in {"read", "unreadable", "newer"}


def _balancer_record(data: bytes) -> None:
    """Whoever may edit Services may write it."""
    record = read_balancer_record(make_kube_service(annotations={BALANCER_ANNOTATION: _text(data)}), NOW)
    if record is not None:
        service = make_kube_service(annotations={BALANCER_ANNOTATION: encode_balancer_record(record)})
        assert read_balancer_record(service, NOW) == record


def _deletions(data: bytes) -> None:
    record = grant_deletion(_text(data), "web-1", limit=DeletionLimit(per_hour=99_999), now=NOW)
    if isinstance(record, str):
        again = grant_deletion(record, "web-2", limit=DeletionLimit(per_hour=0), now=NOW)
        assert isinstance(again, BudgetDenial), "what is written is read again, and counts"


def _objects() -> tuple[bytes, ...]:
    node = make_node(
        labels={"a": "b"}, provider_id="hcloud://7", pod_cidrs=("10.244.1.0/24",), system_uuid="4C"
    )
    request = make_request(pem=b"-----BEGIN CERTIFICATE REQUEST-----", expiration_seconds=86400)
    service = make_kube_service(
        annotations={BALANCER_ANNOTATION: "{}"}, finalizers=(CLEANUP_FINALIZER,), ip_families=("IPv4",)
    )
    return tuple(msgspec.json.encode(each) for each in (node, request, service))


_STATUS: Final = (
    b'{"kind":"Status","message":"no","reason":"AlreadyExists","code":409,'
    b'"details":{"retryAfterSeconds":3,"causes":[{"reason":"FieldValueDuplicate","field":"metadata.uid","message":"m"}]}}'
)


def _watch_seeds() -> tuple[bytes, ...]:
    kinds = (b"ADDED", b"DELETED")
    events = (b'{"type":"%b","object":%b}' % (kind, each) for kind in kinds for each in _objects())
    bookmark = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"7"}}}'
    return (*events, bookmark, b'{"type":"ERROR","object":%b}' % _STATUS)


def _page_seeds() -> tuple[bytes, ...]:
    head = b'{"metadata":{"resourceVersion":"7","continue":"c"},"items":[%b]}'
    return tuple(head % b",".join(items) for items in ((), _objects()))


def _claims_seeds() -> tuple[bytes, ...]:
    head = b'{"version":1,"range":"10.240.0.0/12","claims":{%b}}'
    claims = (
        b'"10.244.0.0/24":{"uid":"u1","node":"web-1"}',
        b'"10.244.1.0/24":{"uid":"u2","goneSince":"2026-01-01T00:00:00Z"}',
    )
    return (head % b"", head % claims[0], head % b",".join(claims))


_json_target = partial(Target, format="json")
TARGETS: Final = (
    _json_target(name="kube-watch-event", run=_watch_event, seeds=_watch_seeds),
    _json_target(name="kube-list-page", run=_list_page, seeds=_page_seeds, errors=(KubeError,)),
    _json_target(
        name="balancer-record",
        run=_balancer_record,
        seeds=lambda: (b'{"account":"prod","id":"7","anchor":{"kind":"network","id":"4711"}}',),
    ),
    _json_target(name="kube-error", run=_error, seeds=lambda: (_STATUS, b"3", b"not JSON")),
    _json_target(
        name="kube-lease",
        run=_lease,
        seeds=lambda: (b'{"metadata":{"name":"l"},"spec":{"holderIdentity":"a","leaseTransitions":3}}',),
        errors=JSON_ERRORS,
    ),
    _json_target(
        name="provided-node-ip",
        run=_node_ips,
        seeds=lambda: (b"10.0.0.5", b"10.0.0.5, fd00::5", b"::ffff:10.0.0.5", b"fe80::1%eth0"),
    ),
    _json_target(name="ipam-claims", run=_claims, seeds=_claims_seeds),
    _json_target(
        name="machine-config-keys",
        run=_owned_keys,
        seeds=lambda: (b'["a.example/x","b"]', b"[]"),
    ),
    _json_target(
        name="ownership-record",
        run=_ownership,
        seeds=lambda: (b'{"v":1,"labels":{"a":"b","c":null},"taints":{"k:NoSchedule":"v"}}', b'{"v":2}'),
    ),
    _json_target(
        name="lifecycle-deletions",
        run=_deletions,
        seeds=lambda: (b'[{"node":"web-1","at":"%b"}]' % NOW.isoformat().encode(), b"[]"),
    ),
)
