"""The RBAC objects that give each service the permissions of its service spec and no others."""

from collections.abc import Iterable
from typing import Any

from libs.common.contract.services import WATCHER_LEASE_NAME, PolicyRule, ServiceSpec

RBAC = "rbac.authorization.k8s.io"
ACCOUNT_NAMESPACE = "kube-system"
ALL_IN_ONE = "talos-ccm"  # the user of the process that runs every service


def get_user_name(wiring: ServiceSpec, instance: str = ALL_IN_ONE) -> str:
    """Return the user name in the service's client certificate; an instance is one installation."""
    return f"{instance}-{wiring.service}"


def get_lease_name(instance: str, lease: str = WATCHER_LEASE_NAME) -> str:
    """Return the Lease name of that instance, for --leader-elect-resource-name or --lifecycle-lease-name."""
    return lease if instance == ALL_IN_ONE else f"{lease}-{instance}"


def get_account_user_name(account: str) -> str:
    """Return the user name of a ServiceAccount of that name in the services' namespace."""
    return f"system:serviceaccount:{ACCOUNT_NAMESPACE}:{account}"


def build_role_objects(wiring: ServiceSpec, instance: str = ALL_IN_ONE) -> Iterable[dict[str, Any]]:
    """Return the roles and bindings of one service.

    Cluster-wide permissions are in a ClusterRole, the others in a Role per namespace.
    """
    user = get_user_name(wiring, instance)
    for namespace in sorted({right.namespace for right in wiring.policy_rules}):
        rules = [
            _build_rule(right, instance) for right in wiring.policy_rules if right.namespace == namespace
        ]
        yield _build_role(user, namespace, rules)
        accounts = [get_account_user_name(name) for name in (user, instance)]
        yield _build_binding(user, namespace, (user, instance, *accounts))


def get_collection_path(manifest: dict[str, Any]) -> str:
    """Return the API path of the collection of such an object."""
    plural = manifest["kind"].lower() + "s"
    namespace = manifest["metadata"].get("namespace")
    return f"/apis/{RBAC}/v1/" + (f"namespaces/{namespace}/{plural}" if namespace else plural)


def _build_rule(right: PolicyRule, instance: str) -> dict[str, Any]:
    rule: dict[str, Any] = {
        "apiGroups": [right.group],
        "resources": [right.resource],
        "verbs": list(right.verbs),
    }
    names = [
        get_lease_name(instance, name) if right.resource == "leases" else name
        for name in right.resource_names
    ]
    return rule | ({"resourceNames": names} if names else {})


def _build_metadata(user: str, namespace: str) -> dict[str, str]:
    return {"name": user} | ({"namespace": namespace} if namespace else {})


def _build_role(user: str, namespace: str, rules: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "Role" if namespace else "ClusterRole",
        "metadata": _build_metadata(user, namespace),
        "rules": rules,
    }


def _build_binding(user: str, namespace: str, users: tuple[str, ...]) -> dict[str, Any]:
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding" if namespace else "ClusterRoleBinding",
        "metadata": _build_metadata(user, namespace),
        "roleRef": {"apiGroup": RBAC, "kind": "Role" if namespace else "ClusterRole", "name": user},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": name} for name in users],
    }
