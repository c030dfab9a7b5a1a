"""Manifests on a real API server: applied as by `kubectl apply --server-side`, and deleted again."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiohttp
import msgspec

from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.helm.chart import Manifest
from tests.bus_actors import wait_until

APPLY = "application/apply-patch+yaml"
# Talos creates this kind if kubernetesTalosAPIAccess is enabled; the chart's credential is one.
TALOS_ACCOUNTS: Manifest = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "serviceaccounts.talos.dev"},
    "spec": {
        "group": "talos.dev",
        "scope": "Namespaced",
        "names": {
            "kind": "ServiceAccount",
            "listKind": "ServiceAccountList",
            "plural": "serviceaccounts",
            "singular": "serviceaccount",
        },
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {"roles": {"type": "array", "items": {"type": "string"}}},
                            }
                        },
                    }
                },
            }
        ],
    },
}


class Applied(NamedTuple):
    """The response to an apply."""

    status: int
    object: dict[str, Any]
    warnings: tuple[str, ...]


class ApiServer:
    """A client of the API server with an admin's permissions."""

    def __init__(self, server: str, session: aiohttp.ClientSession) -> None:
        self._server = server
        self._session = session

    @classmethod
    @asynccontextmanager
    async def connect(cls, control_plane: ControlPlane) -> AsyncIterator["ApiServer"]:
        connector = aiohttp.TCPConnector(ssl=control_plane.ssl_context())
        async with aiohttp.ClientSession(connector=connector) as session:
            yield cls(control_plane.server, session)

    async def apply(self, manifest: Manifest) -> Applied:
        """Apply server-side, as Talos does; the server rejects unknown fields."""
        query = {"fieldManager": "talos", "force": "true", "fieldValidation": "Strict"}
        async with self._session.patch(
            self._server + path_of(manifest),
            params=query,
            data=msgspec.json.encode(manifest),
            headers={"Content-Type": APPLY},
        ) as answer:
            body = await answer.json()
            return Applied(answer.status, body, tuple(answer.headers.getall("Warning", ())))

    async def delete(self, manifest: Manifest) -> None:
        async with self._session.delete(self._server + path_of(manifest)) as answer:
            assert answer.status in (200, 202, 404), await answer.text()

    async def serves(self, path: str) -> bool:
        async with self._session.get(self._server + path) as answer:
            return answer.status == 200

    @asynccontextmanager
    async def with_objects(self, manifests: Sequence[Manifest]) -> AsyncIterator[list[Applied]]:
        """Apply all in order; delete them in reverse order at the end."""
        try:
            yield [await self.apply(manifest) for manifest in manifests]
        finally:
            for manifest in reversed(manifests):
                await self.delete(manifest)

    @asynccontextmanager
    async def with_talos_accounts(self) -> AsyncIterator[None]:
        """Install the custom resource of Talos, which stays for other tests."""
        made = await self.apply(TALOS_ACCOUNTS)
        assert made.status in (200, 201), made.object
        path = "/apis/talos.dev/v1alpha1/namespaces/kube-system/serviceaccounts"
        await wait_until(lambda: self.serves(path), "the custom resource is served")
        yield

    async def names(self, collection: str, selector: str) -> set[str]:
        """The objects of a collection with such labels in all namespaces, as `deployments/NAME`."""
        url = self._server + collection
        async with self._session.get(url, params={"labelSelector": selector}) as answer:
            assert answer.status == 200, await answer.text()
            items = (await answer.json())["items"]
        return {f"{collection.rpartition('/')[2]}/{item['metadata']['name']}" for item in items}


def path_of(manifest: Manifest) -> str:
    """The URL path of the object."""
    version = manifest["apiVersion"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    namespace = manifest["metadata"].get("namespace")
    plural = _plural(manifest["kind"])
    inside = f"/namespaces/{namespace}" if namespace else ""
    return f"{root}{inside}/{plural}/{manifest['metadata']['name']}"


def _plural(kind: str) -> str:
    lower = kind.lower()
    return f"{lower[:-1]}ies" if lower.endswith("y") else f"{lower}s"
