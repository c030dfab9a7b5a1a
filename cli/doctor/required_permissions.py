"""The permissions that each ServiceAccount must have and must not have. Pure."""

from collections.abc import Iterator
from itertools import product
from typing import Final

import msgspec

from cli.cluster.installation import Installation, Process, get_lease_name
from libs.common.contract.controllers import is_controller_selected
from libs.common.contract.services import LEASES, WATCHER_LEASE, PolicyRule
from services.bootstrap.resource_names import ResourceNames
from services.bootstrap.resource_names import list_policy_rules as bootstrap_rights


class AccessReview(msgspec.Struct, frozen=True):
    """One permission that a ServiceAccount must or must not have, and the answer of the API server."""

    service: str  # whose Role of the chart grants it: a service, or "nats"
    service_account: str
    verb: str
    group: str
    resource: str  # with its subresource
    name: str = ""
    namespace: str = ""  # "" = cluster-wide
    is_required: bool = True
    is_allowed: bool = False

    def __str__(self) -> str:
        what = f"{self.resource}.{self.group}" if self.group else self.resource
        name = f" {self.name}" if self.name else ""
        return f"{self.verb} {what}{name}" + (f" in {self.namespace}" if self.namespace else "")

    @property
    def attributes(self) -> dict[str, str]:
        """Return the resourceAttributes of a review."""
        resource, _, subresource = self.resource.partition("/")
        given = {key: getattr(self, key) for key in ("namespace", "verb", "group", "name")}
        given |= {"resource": resource, "subresource": subresource}
        return {key: value for key, value in given.items() if value}

    @property
    def is_missing(self) -> bool:
        """Whether the ServiceAccount lacks a required permission."""
        return self.is_required and not self.is_allowed


_RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
# Permissions that no service needs and that are more powerful than all those that they need.
_NEVER: Final = (
    ("get", "", "secrets"),
    ("list", "", "secrets"),
    ("create", "", "secrets"),
    ("create", "", "serviceaccounts/token"),
    ("create", "", "pods"),
    ("create", "", "pods/exec"),
    ("delete", "", "nodes"),
    ("create", "rbac.authorization.k8s.io", "clusterrolebindings"),
    ("impersonate", "", "users"),
)
_CLUSTER_SCOPED: Final = ("nodes", "clusterrolebindings", "users")
_Rights = list[tuple[str, PolicyRule]]  # with the service whose Role grants it


def list_access_reviews(installation: Installation) -> tuple[AccessReview, ...]:
    """Return all reviews, service by service; also for metadata, which needs no permission."""
    found: list[AccessReview] = []
    for process in installation.processes:
        rights = [
            (spec.service, apply_lease_names(process, right))
            for spec in process.services
            for right in spec.policy_rules
            if _is_needed(process, right)
        ]
        service = process.services[0].service
        found += _list_reviews(service, process.service_account, rights, installation.namespace)
    if installation.nats is not None:
        names = ResourceNames(
            namespace=installation.namespace,
            prefix=installation.prefix,
            cloud_accounts=installation.cloud_accounts,
        )
        account = installation.nats.pod.service_account_name or "default"
        rights = [("nats", right) for right in bootstrap_rights(names)]
        found += _list_reviews("nats", account, rights, installation.namespace)
    # Services in one process share an account: the first Role with a permission suffices.
    by_permission: dict[tuple[str, str], AccessReview] = {}
    for one in found:
        by_permission.setdefault((one.service_account, str(one)), one)
    return tuple(by_permission.values())


def _is_needed(process: Process, right: PolicyRule) -> bool:
    container = process.container
    if right.flag and not container.is_switched_on(right.flag):
        return False
    return not right.controllers or any(
        is_controller_selected(container.controllers, each) for each in right.controllers
    )


def _list_reviews(service: str, account: str, rights: _Rights, namespace: str) -> Iterator[AccessReview]:
    """Yield the required permissions, then the forbidden ones.

    The latter are those in the installation's namespace, where excess is most likely.
    """
    given = {(verb, right.group, right.resource) for _, right in rights for verb in right.verbs}
    for of_service, right in rights:
        for verb, name in product(right.verbs, right.resource_names or ("",)):
            what = (verb, right.group, right.resource)
            yield AccessReview(of_service, account, *what, name=name, namespace=right.namespace)
    for what in (each for each in _NEVER if each not in given):
        place = "" if what[2] in _CLUSTER_SCOPED else namespace
        yield AccessReview(service, account, *what, namespace=place, is_required=False)


def apply_lease_names(process: Process, right: PolicyRule) -> PolicyRule:
    """Return the rule with the Lease names and the namespace from the flags of the process."""
    if right.resource != "leases":
        return right
    names = {lease.name: get_lease_name(process.container, lease) for lease in LEASES}
    namespace, _ = names[WATCHER_LEASE.name]
    return msgspec.structs.replace(
        right,
        namespace=namespace,
        resource_names=tuple(names[name][1] if name in names else name for name in right.resource_names),
    )


def get_role_paths(installation: Installation, asked: AccessReview) -> tuple[str, str]:
    """Return the API paths of the Role (or ClusterRole) of that permission, and of its binding."""
    name = f"{installation.prefix}-{asked.service}"
    if asked.namespace:
        place = f"{_RBAC}/namespaces/{asked.namespace}"
        return f"{place}/roles/{name}", f"{place}/rolebindings/{name}"
    return f"{_RBAC}/clusterroles/{name}", f"{_RBAC}/clusterrolebindings/{name}"
