"""Objects of the API as JSON documents, with the fields of the Go client's types that are never left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

Document = dict[str, Any]

_CREATED: Final = "2026-01-02T03:04:05Z"


def _make_entity(identity: str, slug: str, **fields: Any) -> Document:
    return {"identity": identity, "name": slug, "slug": slug, "createdAt": _CREATED, **fields}


def _make_versioned(identity: str, slug: str, **fields: Any) -> Document:
    defaults = {"description": "", "labels": {"team": "web"}, "annotations": {"note": "none"}}
    return _make_entity(identity, slug, updatedAt=_CREATED, objectVersion=1, **(defaults | fields))


def make_organisation(identity: str, slug: str) -> Document:
    """Return an organisation."""
    return _make_entity(identity, slug, objectVersion=1)


def make_vpc(identity: str, slug: str, organisation: Document, *, region: str = "nl-01") -> Document:
    """Return a VPC with one subnet in a region with one zone."""
    zone = _make_versioned("zone-1", f"{region}a", cloudRegionIdentity="region-1", CloudRegion=None)
    return _make_versioned(
        identity,
        slug,
        status="ready",
        cidrs=["10.0.0.0/16"],
        organisation=organisation,
        cloudRegion=_make_versioned("region-1", region, zones=[zone]),
        subnets=[_make_subnet(f"subnet-{identity}", identity)],
        firewallRules=[],
    )


def _make_subnet(identity: str, vpc: str) -> Document:
    return _make_versioned(
        identity,
        "nodes",
        type="IPv4",
        vpcIdentity=vpc,
        vpc=None,
        cidr="10.0.1.0/24",
        status="ready",
        v4usingIPs=1,
        v4availableIPs=250,
        v6usingIPs=0,
        v6availableIPs=0,
    )


def make_machine(
    identity: str,
    name: str,
    vpc: Document,
    *,
    status: str = "running",
    state: str = "running",
    machine_type: str = "pgp-small",
    addresses: Sequence[str] = (),
) -> Document:
    """Return a machine; `addresses` are those of its interface in the VPC."""
    kind = {"identity": "type-1", "name": machine_type, "slug": machine_type, "description": "small"}
    image = {"identity": "image-1", "name": "talos", "slug": "talos", "labels": {}, "description": ""}
    return _make_entity(
        identity,
        name,
        state=state,
        cloudInit="#!talos",
        deleteProtection=False,
        organisation=vpc["organisation"],
        machineType=kind | {"vcpus": 2, "ramMb": 4096, "diskGb": 40, "swapMb": 0},
        machineImage=image | {"architecture": "x86_64"},
        vpc=vpc,
        subnet=vpc["subnets"][0],
        interfaces=[{"name": "default", "macAddress": "02:00:00:00:00:01", "ipAddresses": list(addresses)}],
        status={"status": status, "statusMessage": "", "lastTransitionTime": _CREATED},
        availabilityZone=vpc["cloudRegion"]["zones"][0]["slug"],
    )


def make_security_group(identity: str, vpc: Document) -> Document:
    """Return a security group without rules, which nothing here reads."""
    return _make_versioned(
        identity,
        identity,
        organisation=vpc["organisation"],
        vpc=vpc,
        status="active",
        allowSameGroupTraffic=True,
        ingressRules=[],
        egressRules=[],
    )


def make_listener(identity: str, name: str, **fields: Any) -> Document:
    """Return a port of a load balancer; its target group is one of the fields."""
    return without_empty(_make_versioned(identity, name, **fields))


def make_target_group(identity: str, vpc: Document, *, name: str, **fields: Any) -> Document:
    """Return a target group without attachments."""
    return without_empty(_make_versioned(identity, name, organisation=vpc["organisation"], vpc=vpc, **fields))


def without_empty(document: Document) -> Document:
    """Leave out empty labels and annotations, as Go does with these two types."""
    empty = [name for name in ("labels", "annotations") if not document.get(name)]
    return {name: value for name, value in document.items() if name not in empty}


def make_attachment(identity: str, machine: Document) -> Document:
    """Return the attachment of a machine."""
    return {
        "identity": identity,
        "createdAt": _CREATED,
        "loadbalancerTargetGroup": None,
        "virtualMachineInstance": machine,
    }


def make_balancer(identity: str, name: str, vpc: Document, subnet: Document, **fields: Any) -> Document:
    """Return a load balancer that the cloud builds: it has no address."""
    return _make_versioned(
        identity,
        name,
        organisation=vpc["organisation"],
        vpcIdentity=vpc["identity"],
        vpc=vpc,
        subnetIdentity=subnet["identity"],
        subnet=subnet,
        status="creating",
        externalIpAddresses=[],
        internalIpAddresses=[],
        hostname="",
        **fields,
    )
