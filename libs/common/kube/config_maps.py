"""ConfigMaps with text values."""

from collections.abc import Mapping
from urllib.parse import quote

import msgspec

from libs.common.contract.node import ObjectMeta
from libs.common.kube.objects import Resource


class ConfigMap(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A ConfigMap as the API server encodes it."""

    metadata: ObjectMeta
    data: dict[str, str] = {}


def config_map_resource(namespace: str, labels: Mapping[str, str]) -> Resource[ConfigMap]:
    """Return the kind restricted to a namespace and labels. One object may have 1 MiB, so a page 20 MiB."""
    selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
    return Resource(
        plural="configmaps",
        path=f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps",
        item=ConfigMap,
        query={"labelSelector": selector} if selector else {},
        page_size=20,
    )


def encode_config_map(config_map: ConfigMap) -> bytes:
    """Return the body of a create or an update."""
    head = {"apiVersion": "v1", "kind": "ConfigMap"}
    return msgspec.json.encode(head | msgspec.to_builtins(config_map))
