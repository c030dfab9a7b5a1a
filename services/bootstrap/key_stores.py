"""Stores keys and authority: in folders for compose, or in Kubernetes, where it never changes a Secret."""

import errno
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from libs.common.contract.node import ObjectMeta
from libs.common.kube.api import KubeApi
from libs.common.kube.errors import AlreadyExists, Conflict, NotFound
from libs.common.kube.objects import ConfigMap, decode_answer, namespaced_path
from libs.common.kube.request import build_request
from services.bootstrap.resource_names import CA

_ALREADY_EXISTS: Final = (errno.ENOTEMPTY, errno.EEXIST)


class DirectoryKeyStore:
    """Implements `server_reconciler.KeyStore` with a directory that has one folder per Secret."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def get_secret(self, name: str) -> Mapping[str, bytes] | None:
        """Return the data of a Secret; None if it does not exist."""
        return _read_directory(self._directory / name)

    async def create_secret(self, name: str, data: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Create a Secret atomically; return its data, or those of another process that was first."""
        return _create_directory(self._directory / name, data)

    async def publish_authority(self, name: str, certificate: str) -> None:
        """Write the CA certificate as `ca.crt` beside the folders."""
        self._directory.mkdir(parents=True, exist_ok=True)
        write_file(self._directory / CA, certificate.encode(), mode=0o644)

    async def close(self) -> None:
        """Do nothing: nothing is open."""


def read_file(path: Path) -> bytes | None:
    """Return the content of a file; None if it does not exist."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def write_file(path: Path, content: bytes, *, mode: int = 0o600) -> bool:
    """Replace a file atomically; return False if it had this content already."""
    if read_file(path) == content:
        return False
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(content)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return True


def _read_directory(folder: Path) -> dict[str, bytes] | None:
    try:
        return {file.name: file.read_bytes() for file in folder.iterdir()}
    except FileNotFoundError:
        return None


def _create_directory(folder: Path, data: Mapping[str, bytes]) -> Mapping[str, bytes]:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".") as made:
        whole = Path(made) / folder.name
        whole.mkdir(mode=0o700)
        for key, value in data.items():
            write_file(whole / key, value)
        try:
            whole.rename(folder)
        except OSError as error:
            if error.errno not in _ALREADY_EXISTS:
                raise
    return _read_directory(folder) or data


class _Secret(msgspec.Struct, frozen=True):
    data: dict[str, bytes] = {}  # msgspec reads and writes bytes as base64, as Kubernetes does


class KubernetesKeyStore:
    """Implements `server_reconciler.KeyStore` for one installation. Every method raises KubeError.

    New objects get the label of the installation. Existing Secrets without the label are used as they are.
    """

    def __init__(self, kube: KubeApi, namespace: str, instance: str) -> None:
        self._kube = kube
        self._labels = {
            "app.kubernetes.io/name": "talos-cloud-controller-manager",
            "app.kubernetes.io/component": "nats",
            "app.kubernetes.io/managed-by": "talos-ccm-bootstrap",
            "app.kubernetes.io/instance": instance,
        }
        self._namespace = namespace
        self._collection = namespaced_path(namespace, "secrets")

    async def get_secret(self, name: str) -> Mapping[str, bytes] | None:
        """Return the data of a Secret; None if it does not exist."""
        request = build_request("get", self._collection, name)
        try:
            answer = await self._kube.transport.call(request)
        except NotFound:
            return None
        return decode_answer(answer, _Secret, request).data

    async def create_secret(self, name: str, data: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Create a Secret; return its data, or those of another process that was first."""
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "labels": self._labels},
            "type": "Opaque",
            "data": data,
        }
        request = build_request("create", self._collection, name, msgspec.json.encode(body))
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
