"""Tokens of ServiceAccounts, which the real API server rejects once they are revoked."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from itertools import count
from pathlib import Path
from typing import Final

from libs.testbed.kubelets import KubeletFleet
from libs.testbed.pki import write_private
from libs.testbed.service_permissions import ACCOUNT_NAMESPACE

_API: Final = f"/api/v1/namespaces/{ACCOUNT_NAMESPACE}"
_LIFETIME_SECONDS: Final = 3600


class ServiceAccountTokens:
    """Files with a token of a ServiceAccount. Each token is bound to a Secret, so it ends with the Secret."""

    def __init__(self, admin: KubeletFleet) -> None:
        self._admin = admin
        self._numbers = count(1)
        self._accounts: dict[Path, str] = {}
        self._secrets: dict[Path, str] = {}  # one for each present token
        self._live: set[str] = set()  # secrets of all tokens that are not revoked

    @property
    def files(self) -> tuple[Path, ...]:
        """The files with a token."""
        return tuple(self._accounts)

    async def issue(self, account: str, file: Path) -> None:
        """Write the first token of a process; the ServiceAccount may exist. Raises RequestRejected."""
        await self._create("serviceaccounts", account)
        self._accounts[file] = account
        await self._replace(file)

    async def rotate_all(self) -> None:
        """Write a new token to each file and revoke the former one. Raises RequestRejected."""
        await asyncio.gather(*(self._replace(file) for file in self.files))
        await self._delete(self._live - set(self._secrets.values()))

    async def revoke_all(self) -> None:
        """Revoke the tokens of all files; the files stay. Raises RequestRejected."""
        await self._delete(set(self._live))

    async def _replace(self, file: Path) -> None:
        account = self._accounts[file]
        secret = f"{account}-token-{next(self._numbers)}"
        await self._create("secrets", secret)
        self._live.add(secret)
        spec = {
            "expirationSeconds": _LIFETIME_SECONDS,
            "boundObjectRef": {"apiVersion": "v1", "kind": "Secret", "name": secret},
        }
        path = f"{_API}/serviceaccounts/{account}/token"
        answer = await self._admin.send("POST", path, body={"spec": spec})
        write_private(file, answer["status"]["token"].encode())
        self._secrets[file] = secret

    async def _create(self, plural: str, name: str) -> None:
        body = {"metadata": {"name": name}}
        await self._admin.send("POST", f"{_API}/{plural}", also=HTTPStatus.CONFLICT, body=body)

    async def _delete(self, secrets: set[str]) -> None:
        for secret in secrets:
            await self._admin.send("DELETE", f"{_API}/secrets/{secret}", also=HTTPStatus.NOT_FOUND)
            self._live.discard(secret)
