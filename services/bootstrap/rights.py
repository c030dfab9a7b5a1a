"""What the bootstrap may do in Kubernetes: read and make what is its own, and change no Secret."""

from libs.common.wiring import Right
from services.bootstrap.names import Names


def rights(names: Names) -> tuple[Right, ...]:
    """Its RBAC rules, all in the installation's namespace."""
    namespace = names.namespace
    return (
        Right(group="", resource="secrets", verbs=("get",), names=names.secrets, namespace=namespace),
        # RBAC cannot restrict `create` by name: the name is not known to the authorizer.
        Right(group="", resource="secrets", verbs=("create",), namespace=namespace),
        Right(
            group="",
            resource="configmaps",
            verbs=("get", "update"),
            names=(names.authority,),
            namespace=namespace,
        ),
        Right(group="", resource="configmaps", verbs=("create",), namespace=namespace),
    )
