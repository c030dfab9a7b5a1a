"""Reads Secrets and a ConfigMap in Kubernetes and creates missing ones. It never changes a Secret."""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import msgspec

from libs.common.contract.node import ObjectMeta
from libs.common.kube.api import KubeApi
from libs.common.kube.config_maps import ConfigMap
from libs.common.kube.errors import AlreadyExists, Conflict, NotFound
from libs.common.kube.objects import decode_answer
from libs.common.kube.request import Request
from services.bootstrap.resource_names import CA

LABELS: Final = {
    "app.kubernetes.io/name": "talos-cloud-controller-manager",
    "app.kubernetes.io/component": "nats",
    "app.kubernetes.io/managed-by": "talos-ccm-bootstrap",
}
INSTANCE: Final = "app.kubernetes.io/instance"


class _Secret(msgspec.Struct, frozen=True):
    data: dict[str, str] = {}


class KubernetesKeyStore:
    """Implements `server_files.KeyStore` for one installation. Every method raises KubeError.

    New objects get the label of the installation. Existing Secrets without the label are used as they are.
    """

    def __init__(self, kube: KubeApi, namespace: str, instance: str) -> None:
        self._kube = kube
        self._labels = LABELS | {INSTANCE: instance}
        self._namespace = namespace
        self._collection = f"/api/v1/namespaces/{quote(namespace, safe='')}/secrets"

    async def get_secret(self, name: str) -> Mapping[str, bytes] | None:
        """Return the data of a Secret; None if it does not exist."""
        path = f"{self._collection}/{quote(name, safe='')}"
        request = Request(verb="get", resource="secrets", name=name, path=path)
        try:
            answer = await self._kube.transport.call(request)
        except NotFound:
            return None
        return {key: b64decode(value) for key, value in decode_answer(answer, _Secret, request).data.items()}

    async def create_secret(self, name: str, data: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Create a Secret; return its data, or those of another process that was first."""
        body: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "labels": self._labels},
            "type": "Opaque",
            "data": {key: b64encode(value).decode() for key, value in data.items()},
        }
        request = Request(
            verb="create",
            resource="secrets",
            name=name,
            method="POST",
            path=self._collection,
            body=msgspec.json.encode(body),
        )
        try:
            await self._kube.transport.call(request)
        except AlreadyExists as error:
            existing = await self.get_secret(name)
            if existing is None:
                raise Conflict("it existed and was deleted", request=str(request)) from error
            return existing
        return data

    async def publish_authority(self, name: str, certificate: str) -> None:
        """Write the CA certificate to a ConfigMap and keep its other keys."""
        try:
            existing = await self._kube.get_config_map(self._namespace, name)
        except NotFound:
            meta = ObjectMeta(name=name, labels=self._labels)
            await self._kube.create_config_map(
                self._namespace, ConfigMap(metadata=meta, data={CA: certificate})
            )
            return
        labels = {**existing.metadata.labels, **self._labels}
        desired = msgspec.structs.replace(
            existing,
            metadata=msgspec.structs.replace(existing.metadata, labels=labels),
            data={**existing.data, CA: certificate},
        )
        if desired != existing:
            await self._kube.update_config_map(self._namespace, desired)

    async def close(self) -> None:
        """Close the connections."""
        await self._kube.close()
