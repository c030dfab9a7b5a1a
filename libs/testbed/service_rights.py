"""The RBAC objects that give each service the rights of its wiring and no other."""

from collections.abc import Iterable
from typing import Any

from libs.common.wiring import Right, Wiring

RBAC = "rbac.authorization.k8s.io"
ALL_IN_ONE = "talos-ccm"  # the user of the process that runs every service


def user_of(wiring: Wiring) -> str:
    """The user name in the service's client certificate."""
    return f"{ALL_IN_ONE}-{wiring.service}"


def role_objects(wiring: Wiring) -> Iterable[dict[str, Any]]:
    """Roles and bindings of one service: a ClusterRole for cluster-wide rights, a Role per namespace."""
    for namespace in sorted({right.namespace for right in wiring.rights}):
        rules = [_rule(right) for right in wiring.rights if right.namespace == namespace]
        yield _role(wiring, namespace, rules)
        yield _binding(wiring, namespace)


def path_of(manifest: dict[str, Any]) -> str:
    """The collection that such an object is created in."""
    plural = manifest["kind"].lower() + "s"
    namespace = manifest["metadata"].get("namespace")
    return f"/apis/{RBAC}/v1/" + (f"namespaces/{namespace}/{plural}" if namespace else plural)


def _rule(right: Right) -> dict[str, Any]:
    rule: dict[str, Any] = {
        "apiGroups": [right.group],
        "resources": [right.resource],
        "verbs": list(right.verbs),
    }
    return rule | ({"resourceNames": list(right.names)} if right.names else {})


def _metadata(wiring: Wiring, namespace: str) -> dict[str, str]:
    return {"name": user_of(wiring)} | ({"namespace": namespace} if namespace else {})


def _role(wiring: Wiring, namespace: str, rules: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "Role" if namespace else "ClusterRole",
        "metadata": _metadata(wiring, namespace),
        "rules": rules,
    }


def _binding(wiring: Wiring, namespace: str) -> dict[str, Any]:
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding" if namespace else "ClusterRoleBinding",
        "metadata": _metadata(wiring, namespace),
        "roleRef": {
            "apiGroup": RBAC,
            "kind": "Role" if namespace else "ClusterRole",
            "name": user_of(wiring),
        },
        "subjects": [
            {"apiGroup": RBAC, "kind": "User", "name": name} for name in (user_of(wiring), ALL_IN_ONE)
        ],
    }
