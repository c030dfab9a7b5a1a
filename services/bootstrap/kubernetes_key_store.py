"""Secrets and a ConfigMap in Kubernetes: read, and made where there is none; no Secret is ever changed."""

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
from libs.common.kube.transport import Request
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
    """One installation in a namespace. Fulfils `prepare.Store`; every method raises KubeError.

    What is made bears the installation's label. A Secret of a release that set none is used as it is.
    """

    def __init__(self, kube: KubeApi, namespace: str, instance: str) -> None:
        self._kube = kube
        self._labels = LABELS | {INSTANCE: instance}
        self._namespace = namespace
        self._collection = f"/api/v1/namespaces/{quote(namespace, safe='')}/secrets"

    async def get_secret(self, name: str) -> Mapping[str, bytes] | None:
        """What a Secret holds, None if there is none."""
        path = f"{self._collection}/{quote(name, safe='')}"
        request = Request(verb="get", resource="secrets", name=name, path=path)
        try:
            answer = await self._kube.transport.call(request)
        except NotFound:
            return None
        return {key: b64decode(value) for key, value in decode_answer(answer, _Secret, request).data.items()}

    async def create_secret(self, name: str, data: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Make it; what is there in the end: another's, if that was sooner."""
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
        except AlreadyExists as taken:
            held = await self.get_secret(name)
            if held is None:
                raise Conflict("it was there, and is gone again", request=str(request)) from taken
            return held
        return data

    async def publish_authority(self, name: str, certificate: str) -> None:
        """Tell everybody whom to trust, in a ConfigMap; what else it holds stays."""
        try:
            held = await self._kube.get_config_map(self._namespace, name)
        except NotFound:
            meta = ObjectMeta(name=name, labels=self._labels)
            await self._kube.create_config_map(
                self._namespace, ConfigMap(metadata=meta, data={CA: certificate})
            )
            return
        wanted = msgspec.structs.replace(
            held,
            metadata=msgspec.structs.replace(held.metadata, labels={**held.metadata.labels, **self._labels}),
            data={**held.data, CA: certificate},
        )
        if wanted != held:
            await self._kube.update_config_map(self._namespace, wanted)

    async def close(self) -> None:
        """Close the connections."""
        await self._kube.close()
