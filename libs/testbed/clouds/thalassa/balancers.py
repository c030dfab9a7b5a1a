"""Load balancers, their listeners and target groups. The Go client shows their fields, and no rule.

Assumed: a load balancer is usable some time after its creation and visible some time after its deletion; its
listeners are told apart by port alone; a target group of a listener is not deleted; all targets of a group
are machines of its VPC.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from libs.testbed.clouds.http_faults import Answer
from libs.testbed.clouds.thalassa.bodies import (
    BalancerBody,
    ListenerBody,
    NewBalancer,
    NewTargetGroup,
    Refusal,
    read_body,
)
from libs.testbed.clouds.thalassa.objects import (
    Document,
    make_balancer,
    make_listener,
)
from libs.testbed.clouds.thalassa.target_groups import GROUPS, SimTargetGroups

if TYPE_CHECKING:
    from libs.testbed.clouds.thalassa.organisation import SimOrganisation

BALANCERS = "loadbalancers"


class SimBalancers:
    """The load balancers of one organisation."""

    def __init__(self, organisation: SimOrganisation, now: Callable[[], float]) -> None:
        """`now` is monotonic, in seconds."""
        self.build_seconds = 0.0  # from a creation until it is usable
        self.delete_seconds = 0.0  # from a deletion until it is gone
        self.quota = 100
        self.shows_parts = True  # whether lists have listeners and attachments, which are null otherwise
        self.hidden_fields: tuple[str, ...] = ()  # of listeners, which are null in their load balancer
        self.groups = SimTargetGroups(organisation)
        self._organisation = organisation
        self._now = now
        self._ends: dict[str, float] = {}  # of the present state, by identity

    def advance(self) -> None:
        """Finish what has had its time."""
        table = self._organisation.tables[BALANCERS]
        due = [identity for identity, end in self._ends.items() if end <= self._now()]
        for identity in due:
            del self._ends[identity]
            balancer = table.get(identity)
            if balancer is not None and balancer["status"] == "deleting":
                del table[identity]
            elif balancer is not None:
                self._assign_addresses(balancer)

    def render(self, kind: str, found: Document, *, is_list: bool = False) -> Document:
        """Return an object as the API sends it: with one level of what belongs to it."""
        hides = is_list and not self.shows_parts
        if kind == BALANCERS:
            bare = dict.fromkeys(self.hidden_fields)
            listeners = None if hides else [each | bare for each in self.list_listeners(found)]
            own = {"loadbalancerListeners": listeners}
        elif kind == GROUPS:
            return self.groups.render(found, hides=hides)
        else:
            return found
        return {name: value for name, value in found.items() if not name.startswith("_")} | own

    def list_listeners(self, balancer: Document) -> list[Document]:
        """Return the ports of a load balancer."""
        return [self._render_listener(each) for each in balancer["_listeners"]]

    def answer_write(self, method: str, path: list[str], body: bytes, project: str) -> Answer:
        """Return the answer to a request that changes something. Raises Refusal."""
        match method, path:
            case "POST", ["loadbalancers"]:
                return self._create(read_body(body, NewBalancer), project)
            case "POST", ["loadbalancer-target-groups"]:
                return self.groups.create(read_body(body, NewTargetGroup), project)
            case _, [kind, identity, *rest] if kind in (BALANCERS, GROUPS):
                found = self._organisation.tables[kind].get(identity)
                if found is None:
                    raise Refusal(404, "not found")
                if found.get("status") == "deleting":
                    raise Refusal(409, "the load balancer is being deleted")
                change = self._change_balancer if kind == BALANCERS else self.groups.change
                return change(method, rest, found, body)
        raise Refusal(404, "not found")

    # ---- load balancers

    def _create(self, body: NewBalancer, project: str) -> Answer:
        if len(self._organisation.tables[BALANCERS]) >= self.quota:
            raise Refusal(403, "quota exceeded: load balancers")
        vpc, subnet = self._find_subnet(body.subnet)
        identity = self._organisation.next_identity("lb")
        balancer = make_balancer(
            identity,
            body.name,
            vpc,
            subnet,
            description=body.description,
            labels=body.labels,
            annotations=body.annotations,
            deleteProtection=body.delete_protection,
            securityGroups=[],
            _listeners=[],
            _is_internal=body.internal_loadbalancer,
        )
        self._apply_settings(balancer, body)
        for each in body.listeners or ():
            balancer["_listeners"].append(self._make_listener(balancer, each))
        self._organisation.put(BALANCERS, balancer, project)
        self._ends[identity] = self._now() + self.build_seconds
        self.advance()
        return Answer(status=201, document=self.render(BALANCERS, balancer))

    def _change_balancer(self, method: str, rest: list[str], balancer: Document, body: bytes) -> Answer:
        listeners = balancer["_listeners"]
        match method, rest:
            case "PUT", []:
                self._update(balancer, read_body(body, BalancerBody))
                return Answer(status=200, document=self.render(BALANCERS, balancer))
            case "DELETE", []:
                if balancer["deleteProtection"]:
                    raise Refusal(400, "delete protection is enabled")
                balancer["status"] = "deleting"
                self._ends[balancer["identity"]] = self._now() + self.delete_seconds
                return Answer(status=204, document=None)
            case "POST", ["listeners"]:
                listener = self._make_listener(balancer, read_body(body, ListenerBody))
                listeners.append(listener)
                return Answer(status=201, document=self._render_listener(listener))
            case "PUT" | "DELETE", ["listeners", identity]:
                found = next((each for each in listeners if each["identity"] == identity), None)
                if found is None:
                    raise Refusal(404, "not found")
                if method == "DELETE":
                    listeners.remove(found)
                    return Answer(status=204, document=None)
                changed = self._make_listener(balancer, read_body(body, ListenerBody), found)
                found.clear()
                found.update(changed)
                return Answer(status=200, document=self._render_listener(found))
        raise Refusal(404, "not found")

    def _update(self, balancer: Document, body: BalancerBody) -> None:
        place = {}
        if body.subnet is not UNSET:
            vpc, subnet = self._find_subnet(body.subnet)
            is_other = subnet["identity"] != balancer["subnetIdentity"]
            if is_other and (balancer["_is_internal"] or vpc["identity"] != balancer["vpcIdentity"]):
                raise Refusal(400, "the load balancer cannot move to this subnet")
            place = {"subnet": subnet, "subnetIdentity": subnet["identity"]}
        self._apply_settings(balancer, body)
        balancer.update(
            place,
            name=body.name,
            description=body.description,
            labels=body.labels,
            annotations=body.annotations,
            deleteProtection=body.delete_protection,
            objectVersion=balancer["objectVersion"] + 1,
        )

    def _apply_settings(self, balancer: Document, body: BalancerBody) -> None:
        tables, settings = self._organisation.tables, dict[str, Any]()
        if body.security_group_attachments is not UNSET:
            known = tables["security-groups"]
            if unknown := [each for each in body.security_group_attachments if each not in known]:
                raise Refusal(400, f"no such security group: {unknown[0]}")
            settings["securityGroups"] = [known[each] for each in body.security_group_attachments]
        if body.reserved_ip is not UNSET:
            users = [each for each in tables[BALANCERS].values() if each is not balancer]
            is_used = any(each.get("reservedIpIdentity") == body.reserved_ip for each in users)
            if body.reserved_ip and (is_used or body.reserved_ip not in self._organisation.reserved_ips):
                raise Refusal(400, f"the reserved IP {body.reserved_ip} is not available")
            balancer.pop("reservedIpIdentity", None)
            settings |= {"reservedIpIdentity": body.reserved_ip} if body.reserved_ip else {}
        balancer.update(settings)
        if balancer["status"] == "ready":
            self._assign_addresses(balancer)

    def _assign_addresses(self, balancer: Document) -> None:
        number = int(balancer["identity"].rpartition("-")[2]) % 250
        reserved = self._organisation.reserved_ips.get(balancer.get("reservedIpIdentity", ""))
        public = [] if balancer["_is_internal"] else [reserved or f"198.51.100.{number}"]
        balancer.update(status="ready", externalIpAddresses=public, internalIpAddresses=[f"10.0.1.{number}"])

    def _find_subnet(self, identity: object) -> tuple[Document, Document]:
        for vpc in self._organisation.tables["vpcs"].values():
            for subnet in vpc["subnets"]:
                if subnet["identity"] == identity:
                    return vpc, subnet
        raise Refusal(400, f"no such subnet: {identity}")

    # ---- listeners

    def _make_listener(
        self, balancer: Document, body: ListenerBody, former: Document | None = None
    ) -> Document:
        others = [each for each in balancer["_listeners"] if each is not former]
        if any(each["port"] == body.port for each in others):
            raise Refusal(409, f"port {body.port} has a listener")
        group = self._organisation.tables[GROUPS].get(body.target_group)
        if group is None or group["vpc"]["identity"] != balancer["vpcIdentity"]:
            raise Refusal(400, f"no such target group: {body.target_group}")
        limits = {
            "maxConnections": body.max_connections,
            "connectionIdleTimeout": body.connection_idle_timeout,
        }
        return make_listener(
            former["identity"] if former else self._organisation.next_identity("listener"),
            body.name,
            description=body.description,
            labels=body.labels,
            annotations=body.annotations,
            port=body.port,
            protocol=body.protocol,
            targetGroup=body.target_group,
            allowedSources=body.allowed_sources or [],
            **{name: value for name, value in limits.items() if value is not None},
        )

    def _render_listener(self, listener: Document) -> Document:
        group = self._organisation.tables[GROUPS][listener["targetGroup"]]
        return listener | {"targetGroup": self.groups.render(group, hides=True)}
