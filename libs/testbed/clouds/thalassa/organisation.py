"""One organisation of the simulated cloud: its VPCs and machines, and the projects that they belong to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from libs.testbed.clouds.thalassa.objects import Document, make_machine, make_organisation, make_vpc


class SimOrganisation:
    """One organisation. Identities are unique in the whole cloud."""

    def __init__(self, ids: Iterator[int], slug: str) -> None:
        self.document = make_organisation(f"o-{next(ids)}", slug)
        self.tables: dict[str, dict[str, Document]] = {"machines": {}, "vpcs": {}}
        self.projects: dict[str, str] = {}  # of an object, by its identity; objects without one are in all
        self._ids = ids
        self._unlisted_vpc = make_vpc(f"vpc-{next(ids)}", "shared", self.document)

    @property
    def names(self) -> set[str]:
        """The names that the header may have."""
        return {self.document["identity"], self.document["slug"]}

    def add_vpc(self, slug: str = "net", *, project: str = "") -> str:
        """Create a VPC; return its identity."""
        return self._put("vpcs", make_vpc(f"vpc-{next(self._ids)}", slug, self.document), project)

    def add_machine(self, name: str, *, vpc: str = "", project: str = "", **details: Any) -> str:
        """Create a machine with the details of `make_machine`; without `vpc` in one that is not listed."""
        network = self.tables["vpcs"][vpc] if vpc else self._unlisted_vpc
        return self._put("machines", make_machine(f"vm-{next(self._ids)}", name, network, **details), project)

    def set_state(self, identity: str, status: str, state: str = "") -> None:
        """Change what the machine is, and what it is wanted to be; without `state` to the same."""
        machine = self.tables["machines"][identity]
        machine["state"] = state or status
        machine["status"] = machine["status"] | {"status": status}

    def remove(self, kind: str, identity: str) -> Document:
        """Delete the object and return it; `kind` is the last part of the path of its list."""
        return self.tables[kind].pop(identity)

    def find(self, kind: str, project: str) -> list[Document]:
        """Return the objects that a request of this project sees; "" sees all."""
        return [
            each
            for identity, each in self.tables[kind].items()
            if not project or self.projects.get(identity, project) == project
        ]

    def _put(self, kind: str, document: Document, project: str) -> str:
        identity: str = document["identity"]
        self.tables[kind][identity] = document
        if project:
            self.projects[identity] = project
        return identity
