"""The providerID of a machine, its spellings, and the record that a cloud has shown its instance alive."""

import re
from collections.abc import Mapping
from typing import Annotated, Final, Literal

import msgspec

from libs.common.contract.machine import PlatformMetadata
from libs.common.contract.node import Node
from libs.common.contract.platforms import OUR_SCHEME, PLATFORMS, parse_scheme
from libs.common.contract.protected_annotation import has_digest
from libs.common.contract.timestamp import Timestamp
from libs.common.json_errors import JSON_ERRORS

RECORD_ANNOTATION: Final = "node.cloudprovider.kubernetes.io/talos-ccm-instance"
RECORD_DIGEST_LABEL: Final = "talos-ccm.node-restriction.kubernetes.io/instance"
# The clouds of which an account may have instances and load balancers, with the schemes of their providerIDs.
CLOUD_PROVIDERS: Final[Mapping[str, str]] = {
    "hcloud": "hcloud",
    "openstack": "openstack",
    "thalassa": "thalassacloud",
}
ROUTE_PROVIDERS: Final = ("hcloud", "openstack")  # the clouds of which an account may have routes
ROUTER_IN_FILE: Final = "openstack"  # the cloud whose credential file may name what has the routes
_PROVIDER_OF: Final = {scheme: provider for provider, scheme in CLOUD_PROVIDERS.items()}
_OPENSTACK: Final = CLOUD_PROVIDERS["openstack"]
_SCHEMES_WITHOUT_CASE: Final = {each.scheme for each in PLATFORMS.values() if each.ignores_provider_id_case}
_OPTIONAL_SCHEMES: Final = {each.scheme for each in PLATFORMS.values() if each.is_scheme_optional}
_AZURE_GROUP: Final = re.compile(r"(/subscriptions/[^/]+/resourcegroups/)([^/]+)(/providers/)", re.IGNORECASE)
_MAX_RECORD_LENGTH: Final = 4096  # characters; a record has some hundred

# "instance": of another Node of the account. "anchor": the recorded anchor of this Node. "cloud": none was
# needed, because the cloud itself says that the instance was deleted.
WitnessKind = Literal["instance", "anchor", "cloud"]


class InstanceAnchor(msgspec.Struct, frozen=True, kw_only=True):
    """What marks a project of the cloud: an object that outlives its instances, else its credential.

    Ids are unique per kind; that of the kind "credential" is a fingerprint.
    """

    kind: Annotated[str, msgspec.Meta(max_length=64)]
    id: Annotated[str, msgspec.Meta(max_length=256)]


class InstanceWitness(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the credential found by exact id, right after it had not found an instance."""

    kind: WitnessKind
    id: str = ""  # of the instance, or "<kind>/<id>" of the anchor; "" for "cloud"
    asked_at: Timestamp


class InstanceRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """That an account has shown the instance of a Node alive. Without it, the account counts for no Node."""

    account: str
    provider_id: str
    node_uid: str
    system_uuid: str
    anchor: InstanceAnchor | None = None
    seen_at: Timestamp


def build_provider_id(platform: PlatformMetadata, node_ip: str) -> str:
    """Return the native providerID or, if there is none, `talos://<platform>/<node IP>`."""
    reported = derive_native_provider_id(platform)
    return reported or f"{OUR_SCHEME}://{platform.platform}/{node_ip}"


def derive_native_provider_id(platform: PlatformMetadata) -> str:
    """Return the providerID in the form that the platform's own controllers write, or "".

    A resource group, which only Azure has, is in lower case.
    """
    known = PLATFORMS.get(platform.platform)
    if known is None or not known.ignores_provider_id_case:
        return platform.provider_id
    return _AZURE_GROUP.sub(lambda found: f"{found[1]}{found[2].lower()}{found[3]}", platform.provider_id, 1)


def get_provider(provider_id: str) -> str:
    """Return the cloud that this providerID names; "" if it is none of CLOUD_PROVIDERS."""
    return _PROVIDER_OF.get(parse_scheme(provider_id), "")


def is_same_instance(one: str, other: str) -> bool:
    """Return whether two providerIDs name one instance. Those of OpenStack may name the region or not."""
    regions = {_split(each)[1] for each in (one, other)} if _split(one)[0] == _OPENSTACK else {""}
    return make_instance_key(one) == make_instance_key(other) and ("" in regions or len(regions) == 1)


def make_instance_key(provider_id: str) -> str:
    """Return the text that is equal for all providerIDs of one instance."""
    scheme, _, server = _split(provider_id)
    if scheme in _OPTIONAL_SCHEMES:
        return provider_id.removeprefix(f"{scheme}://")
    if scheme == _OPENSTACK and server:  # an empty region is any: the id is unique
        return f"{scheme}:///{server}"
    return provider_id.lower() if scheme in _SCHEMES_WITHOUT_CASE else provider_id


def _split(provider_id: str) -> tuple[str, str, str]:
    scheme, _, rest = provider_id.partition("://")
    region, _, server = rest.partition("/")
    return scheme, region, server


def encode_instance_record(record: InstanceRecord) -> str:
    """Return the value of the annotation: equal records give equal text."""
    return msgspec.json.encode(record, order="sorted").decode()


def read_instance_record(node: Node) -> InstanceRecord | None:
    """Return the Node's record; None if it has none, or one that does not belong to this Node as it is.

    A kubelet may write annotations of its own Node, so the record counts only with its digest in a label that
    NodeRestriction protects. It belongs to one Node object and to one providerID.
    """
    text = node.annotations.get(RECORD_ANNOTATION, "")
    if not has_digest(node, text, RECORD_DIGEST_LABEL) or len(text) > _MAX_RECORD_LENGTH:
        return None
    try:
        record = msgspec.json.decode(text, type=InstanceRecord)
    except JSON_ERRORS:
        return None
    owner = (record.node_uid, record.provider_id)
    return record if owner == (node.uid, node.spec.provider_id) and all(owner) else None
