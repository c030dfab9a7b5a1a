"""The permissions that each ServiceAccount must have and must not have. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from cli.cluster.installation import Installation, Process, get_lease_name
from libs.common.contract.services import LEASES, WATCHER_LEASE, PolicyRule
from services.bootstrap.resource_names import ResourceNames
from services.bootstrap.resource_names import list_policy_rules as bootstrap_rights


class AccessReviewRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One permission that a ServiceAccount must or must not have."""

    service: str  # the suffix of the Role's name: a service, "nats", or "" for all-in-one
    service_account: str
    verb: str
    group: str
    resource: str  # with its subresource
    name: str = ""
    namespace: str = ""  # "" = cluster-wide
    is_required: bool = True

    def __str__(self) -> str:
        what = f"{self.resource}.{self.group}" if self.group else self.resource
        name = f" {self.name}" if self.name else ""
        return f"{self.verb} {what}{name}" + (f" in {self.namespace}" if self.namespace else "")


class AccessReviewResult(msgspec.Struct, frozen=True):
    """The answer of the API server to one review; `error` says why there is none."""

    request: AccessReviewRequest
    is_allowed: bool = False
    error: str = ""

    @property
    def is_missing(self) -> bool:
        """Whether the ServiceAccount lacks a required permission."""
        return self.request.is_required and not self.is_allowed and not self.error


_RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
# Permissions that no service needs and that are more powerful than all those that they need.
_NEVER: Final = (
    ("", "secrets", ("get", "list", "create")),
    ("", "serviceaccounts/token", ("create",)),
    ("", "pods", ("create",)),
    ("", "pods/exec", ("create",)),
    ("", "nodes", ("delete",)),
    ("rbac.authorization.k8s.io", "clusterrolebindings", ("create",)),
    ("", "users", ("impersonate",)),
)


def list_access_reviews(installation: Installation) -> tuple[AccessReviewRequest, ...]:
    """Return all reviews, service by service; also for metadata, which needs no permission."""
    found: list[AccessReviewRequest] = []
    for process in installation.processes:
        rights = [right for wiring in process.services for right in wiring.policy_rules]
        service = "" if len(process.services) > 1 else process.services[0].service
        found += _list_required(
            service, process.service_account, (apply_lease_names(process, r) for r in rights)
        )
        found += _list_forbidden(service, process.service_account, rights, installation.namespace)
    if installation.nats is not None:
        names = ResourceNames(namespace=installation.namespace, prefix=installation.prefix)
        account = installation.nats.pod.service_account_name or "default"
        rights = list(bootstrap_rights(names))
        found += _list_required("nats", account, rights)
        found += _list_forbidden("nats", account, rights, installation.namespace)
    return tuple(dict.fromkeys(found))


def _list_required(service: str, account: str, rights: Iterable[PolicyRule]) -> Iterator[AccessReviewRequest]:
    for right in rights:
        for verb in right.verbs:
            for name in right.resource_names or ("",):
                yield AccessReviewRequest(
                    service=service,
                    service_account=account,
                    verb=verb,
                    group=right.group,
                    resource=right.resource,
                    name=name,
                    namespace=right.namespace,
                )


def _list_forbidden(
    service: str, account: str, rights: Sequence[PolicyRule], namespace: str
) -> Iterator[AccessReviewRequest]:
    """Yield the forbidden permissions in the installation's namespace, where excess is most likely."""
    given = {(right.group, right.resource, verb) for right in rights for verb in right.verbs}
    for group, resource, verbs in _NEVER:
        for verb in verbs:
            if (group, resource, verb) in given:
                continue
            yield AccessReviewRequest(
                service=service,
                service_account=account,
                verb=verb,
                group=group,
                resource=resource,
                namespace="" if resource in ("nodes", "clusterrolebindings", "users") else namespace,
                is_required=False,
            )


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


def get_role_name(installation: Installation, asked: AccessReviewRequest) -> str:
    """Return the chart's name of Role and binding; in an all-in-one process, each service has its own."""
    service = asked.service or _find_service(installation, asked)
    return f"{installation.prefix}-{service}"


def get_role_paths(installation: Installation, asked: AccessReviewRequest) -> tuple[str, str]:
    """Return the API paths of the Role (or ClusterRole) of that permission, and of its binding."""
    name = get_role_name(installation, asked)
    if asked.namespace:
        place = f"{_RBAC}/namespaces/{asked.namespace}"
        return f"{place}/roles/{name}", f"{place}/rolebindings/{name}"
    return f"{_RBAC}/clusterroles/{name}", f"{_RBAC}/clusterrolebindings/{name}"


def _find_service(installation: Installation, asked: AccessReviewRequest) -> str:
    for process in installation.processes:
        for wiring in process.services:
            for right in (apply_lease_names(process, each) for each in wiring.policy_rules):
                if (right.group, right.resource, right.namespace) == (
                    asked.group, asked.resource, asked.namespace
                ) and asked.verb in right.verbs:  # fmt: skip
                    return wiring.service
    return "watcher"
