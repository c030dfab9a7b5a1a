"""The Kubernetes permissions of the bootstrap: it reads and creates its own objects and changes no Secret."""

from libs.common.contract.service_spec import PolicyRule
from services.bootstrap.resource_names import ResourceNames


def list_policy_rules(names: ResourceNames) -> tuple[PolicyRule, ...]:
    """Return its RBAC rules, all in the namespace of the installation."""
    namespace = names.namespace
    return (
        PolicyRule(
            group="", resource="secrets", verbs=("get",), resource_names=names.secrets, namespace=namespace
        ),
        # RBAC cannot restrict `create` by name: the name is not known to the authorizer.
        PolicyRule(group="", resource="secrets", verbs=("create",), namespace=namespace),
        PolicyRule(
            group="",
            resource="configmaps",
            verbs=("get", "update"),
            resource_names=(names.authority,),
            namespace=namespace,
        ),
        PolicyRule(group="", resource="configmaps", verbs=("create",), namespace=namespace),
    )
