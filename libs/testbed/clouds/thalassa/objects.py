"""Objects of the API as JSON documents, with the fields of the Go client's types that are never left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

Document = dict[str, Any]

_CREATED: Final = "2026-01-02T03:04:05Z"


def _make_entity(identity: str, slug: str, **fields: Any) -> Document:
    return {"identity": identity, "name": slug, "slug": slug, "createdAt": _CREATED, **fields}


def _make_versioned(identity: str, slug: str, **fields: Any) -> Document:
    return _make_entity(
        identity,
        slug,
        description="",
        updatedAt=_CREATED,
        objectVersion=1,
        labels={"team": "web"},
        annotations={"note": "none"},
        **fields,
    )


def make_organisation(identity: str, slug: str) -> Document:
    """Return an organisation."""
    return _make_entity(identity, slug, objectVersion=1)


def make_vpc(identity: str, slug: str, organisation: Document, *, region: str = "nl-01") -> Document:
    """Return a VPC in a region with one zone."""
    zone = _make_versioned("zone-1", f"{region}a", cloudRegionIdentity="region-1", CloudRegion=None)
    return _make_versioned(
        identity,
        slug,
        status="ready",
        cidrs=["10.0.0.0/16"],
        organisation=organisation,
        cloudRegion=_make_versioned("region-1", region, zones=[zone]),
        subnets=[],
        firewallRules=[],
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
    subnet = _make_versioned(
        "subnet-1",
        "nodes",
        type="IPv4",
        vpcIdentity=vpc["identity"],
        vpc=None,
        cidr="10.0.1.0/24",
        status="ready",
        v4usingIPs=1,
        v4availableIPs=250,
        v6usingIPs=0,
        v6availableIPs=0,
    )
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
        subnet=subnet,
        interfaces=[{"name": "default", "macAddress": "02:00:00:00:00:01", "ipAddresses": list(addresses)}],
        status={"status": status, "statusMessage": "", "lastTransitionTime": _CREATED},
        availabilityZone=vpc["cloudRegion"]["zones"][0]["slug"],
    )
