"""One organisation of the simulated cloud: its VPCs and machines, and the projects that they belong to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from libs.testbed.clouds.thalassa.balancers import BALANCERS, SimBalancers
from libs.testbed.clouds.thalassa.objects import (
    Document,
    make_machine,
    make_organisation,
    make_security_group,
    make_vpc,
)
from libs.testbed.clouds.thalassa.target_groups import GROUPS


class SimOrganisation:
    """One organisation. Identities are unique in the whole cloud."""

    def __init__(self, ids: Iterator[int], slug: str, *, now: Callable[[], float] = time.monotonic) -> None:
        self.document = make_organisation(f"o-{next(ids)}", slug)
        kinds = ("machines", "vpcs", BALANCERS, GROUPS, "security-groups")
        self.tables: dict[str, dict[str, Document]] = {kind: {} for kind in kinds}
        self.reserved_ips: dict[str, str] = {}  # addresses by identity
        self.balancers = SimBalancers(self, now)
        self.projects: dict[str, str] = {}  # of an object, by its identity; objects without one are in all
        self._ids = ids
        self._unlisted_vpc = make_vpc(f"vpc-{next(ids)}", "shared", self.document)

    @property
    def names(self) -> set[str]:
        """The names that the header may have."""
        return {self.document["identity"], self.document["slug"]}

    def add_vpc(self, slug: str = "net", *, project: str = "") -> str:
        """Create a VPC; return its identity."""
        return self.put("vpcs", make_vpc(f"vpc-{next(self._ids)}", slug, self.document), project)

    def add_machine(self, name: str, *, vpc: str = "", project: str = "", **details: Any) -> str:
        """Create a machine with the details of `make_machine`; without `vpc` in one that is not listed."""
        network = self.tables["vpcs"][vpc] if vpc else self._unlisted_vpc
        return self.put("machines", make_machine(f"vm-{next(self._ids)}", name, network, **details), project)

    def add_security_group(self, vpc: str) -> str:
        """Create a security group; return its identity."""
        group = make_security_group(f"sg-{next(self._ids)}", self.tables["vpcs"][vpc])
        return self.put("security-groups", group, "")

    def next_identity(self, kind: str) -> str:
        """Return an identity that no other object has."""
        return f"{kind}-{next(self._ids)}"

    def set_state(self, identity: str, status: str, state: str = "") -> None:
        """Change what the machine is, and what it is wanted to be; without `state` to the same."""
        machine = self.tables["machines"][identity]
        machine["state"] = state or status
        machine["status"] = machine["status"] | {"status": status}

    def remove(self, kind: str, identity: str) -> Document:
        """Delete the object and return it; `kind` is the last part of the path of its list."""
        if kind == "machines":
            self.balancers.groups.detach(identity)
        return self.tables[kind].pop(identity)

    def find(self, kind: str, project: str) -> list[Document]:
        """Return the objects that a request of this project sees; "" sees all."""
        return [
            each
            for identity, each in self.tables[kind].items()
            if not project or self.projects.get(identity, project) == project
        ]

    def put(self, kind: str, document: Document, project: str) -> str:
        """Add an object, to one project if it is named; return its identity."""
        identity: str = document["identity"]
        self.tables[kind][identity] = document
        if project:
            self.projects[identity] = project
        return identity
