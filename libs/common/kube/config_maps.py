"""ConfigMaps with text values."""

from collections.abc import Mapping

import msgspec

from libs.common.contract.node import ObjectMeta
from libs.common.kube.objects import Resource, namespaced_resource


class ConfigMap(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A ConfigMap as the API server encodes it."""

    metadata: ObjectMeta
    data: dict[str, str] = {}


def config_map_resource(namespace: str, labels: Mapping[str, str]) -> Resource[ConfigMap]:
    """Return the kind restricted to a namespace and labels. One object may have 1 MiB, so a page 20 MiB."""
    return namespaced_resource("configmaps", ConfigMap, namespace, labels, page_size=20)


def encode_config_map(config_map: ConfigMap) -> bytes:
    """Return the body of a create or an update."""
    head = {"apiVersion": "v1", "kind": "ConfigMap"}
    return msgspec.json.encode(head | msgspec.to_builtins(config_map))
