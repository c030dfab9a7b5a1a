"""Target groups of load balancers, and the machines that are attached to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from libs.testbed.clouds.http_faults import Answer
from libs.testbed.clouds.thalassa.bodies import (
    NewTargetGroup,
    Refusal,
    Target,
    TargetGroupBody,
    Targets,
    read_body,
)
from libs.testbed.clouds.thalassa.objects import (
    Document,
    make_attachment,
    make_target_group,
    without_empty,
)

if TYPE_CHECKING:
    from libs.testbed.clouds.thalassa.organisation import SimOrganisation

GROUPS = "loadbalancer-target-groups"


class SimTargetGroups:
    """The target groups of one organisation."""

    def __init__(self, organisation: SimOrganisation) -> None:
        self._organisation = organisation

    def render(self, group: Document, *, hides: bool = False) -> Document:
        """Return a group as the API sends it; null may hide its listeners and attachments."""
        listeners = [each | {"targetGroup": None} for each in self.list_users(group["identity"])]
        own = {name: value for name, value in group.items() if not name.startswith("_")}
        return own | {
            "loadbalancerListeners": None if hides else listeners,
            "loadbalancerTargetGroupAttachments": None if hides else list(group["_attachments"]),
        }

    def detach(self, machine: str) -> None:
        """Remove a machine that is gone from all target groups."""
        for group in self._organisation.tables[GROUPS].values():
            group["_attachments"] = [each for each in group["_attachments"] if _get_machine(each) != machine]

    def list_users(self, group: str) -> list[Document]:
        """Return the listeners of a target group."""
        balancers = self._organisation.tables["loadbalancers"].values()
        listeners = [each for balancer in balancers for each in balancer["_listeners"]]
        return [each for each in listeners if each["targetGroup"] == group]

    def create(self, body: NewTargetGroup, project: str) -> Answer:
        """Create a group. Raises Refusal."""
        vpc = self._organisation.tables["vpcs"].get(body.vpc)
        if vpc is None:
            raise Refusal(400, f"no such VPC: {body.vpc}")
        identity = self._organisation.next_identity("tg")
        group = make_target_group(identity, vpc, _attachments=[], **_read_group(body))
        self._organisation.put(GROUPS, group, project)
        return Answer(status=201, document=self.render(group))

    def change(self, method: str, rest: list[str], group: Document, body: bytes) -> Answer:
        """Answer a request that changes the group. Raises Refusal."""
        attachments = group["_attachments"]
        match method, rest:
            case "PUT", []:
                changed = _read_group(read_body(body, TargetGroupBody))
                for name in ("labels", "annotations", "healthCheck"):
                    group.pop(name, None)
                group.update(without_empty(changed))
                return Answer(status=200, document=self.render(group))
            case "DELETE", []:
                if self.list_users(group["identity"]):
                    raise Refusal(400, "a listener uses the target group")
                del self._organisation.tables[GROUPS][group["identity"]]
                return Answer(status=204, document=None)
            case "POST", ["attachments"]:
                targets = read_body(body, Targets).attachments
                group["_attachments"] = [self._attach(group, each) for each in targets]
                return Answer(status=204, document=None)
            case "POST", ["attach"]:
                made = self._attach(group, read_body(body, Target))
                if any(_get_machine(each) == _get_machine(made) for each in attachments):
                    raise Refusal(409, "the machine is attached")
                attachments.append(made)
                return Answer(status=201, document=made)
            case "DELETE", ["detach", identity]:
                found = next((each for each in attachments if each["identity"] == identity), None)
                if found is None:
                    raise Refusal(404, "not found")
                attachments.remove(found)
                return Answer(status=204, document=None)
        raise Refusal(404, "not found")

    def _attach(self, group: Document, target: Target) -> Document:
        machine = self._organisation.tables["machines"].get(target.server_identity)
        if machine is None or machine["vpc"]["identity"] != group["vpc"]["identity"]:
            raise Refusal(400, f"no such machine: {target.server_identity}")
        return make_attachment(self._organisation.next_identity("attachment"), machine)


def _get_machine(attachment: Document) -> str:
    identity: str = attachment["virtualMachineInstance"]["identity"]
    return identity


def _read_group(body: TargetGroupBody) -> Document:
    check = {} if body.health_check is None else {"healthCheck": msgspec.to_builtins(body.health_check)}
    return check | {
        "name": body.name,
        "description": body.description,
        "labels": body.labels,
        "annotations": body.annotations,
        "targetPort": body.target_port,
        "protocol": body.protocol,
        "targetSelector": body.target_selector,
        "enableProxyProtocol": bool(body.enable_proxy_protocol),
        "loadbalancingPolicy": body.loadbalancing_policy or "ROUND_ROBIN",
    }
