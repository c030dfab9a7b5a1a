"""A real Kubernetes control plane on one machine: etcd, kube-apiserver and kube-controller-manager."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path

from libs.testbed.child_process import ChildProcess, is_serving, wait_until, watch_exit
from libs.testbed.control_plane.audit_log import (
    AuditedRequest,
    AuditEntry,
    FieldChange,
    count_requests,
    find_last_line_end,
    list_changes,
    list_node_writes,
)
from libs.testbed.control_plane.build import KUBE, build_program
from libs.testbed.control_plane.flags import (
    AUDIT_POLICY,
    ETCD_DATA,
    FIELD_AUDIT_POLICY,
    LONG_GRACE_SECONDS,
    build_apiserver_flags,
    build_controller_manager_flags,
    build_etcd_flags,
)
from libs.testbed.kube_credentials import API_SERVER_HOSTS, KubeCredentials
from libs.testbed.pki import make_service_account_keys
from libs.testbed.ports import allocate_port


class ControlPlane:
    """The running servers, their addresses, and credentials for any user."""

    def __init__(self, run_dir: Path, program: Path, *, grace_seconds: float = LONG_GRACE_SECONDS) -> None:
        self.run_dir = run_dir
        self._grace_seconds = grace_seconds
        self.audit_log = run_dir / "audit.log"
        self._program = program
        self._ports = {name: allocate_port() for name in ("etcd", "etcd-peer", "apiserver")}
        self.server = f"https://127.0.0.1:{self._ports['apiserver']}"
        self._credentials = KubeCredentials(run_dir, self.server)
        self.ca_file = self._credentials.ca_file
        self.client = self._credentials.client
        self.kubeconfig = self._credentials.kubeconfig
        self.ssl_context = self._credentials.ssl_context
        self.etcd: ChildProcess
        self.apiserver: ChildProcess
        self.controller_manager: ChildProcess | None = None
        self.etcd_restores: list[int] = []  # the end of the audit log at each restore of etcd

    @classmethod
    @contextlib.asynccontextmanager
    async def start(
        cls,
        run_dir: Path,
        *,
        controller_manager: bool = True,
        audit_fields: bool = False,
        grace_seconds: float = LONG_GRACE_SECONDS,
    ) -> AsyncIterator[ControlPlane]:
        """Start the servers in `run_dir`, which must be new or empty, and wait for /readyz.

        Without the controller manager no certificate is signed. With `audit_fields`, the audit log also has
        the content of each write to Nodes and certificate requests. A Node is not ready after
        `grace_seconds` without a heartbeat.
        """
        control_plane = cls(run_dir, await build_program(KUBE), grace_seconds=grace_seconds)
        control_plane._write_files(FIELD_AUDIT_POLICY if audit_fields else AUDIT_POLICY)
        try:
            await control_plane._start(controller_manager=controller_manager)
            yield control_plane
        finally:
            await control_plane.stop()

    def issue_serving_certificate(self, name: str, hosts: Sequence[str]) -> tuple[Path, Path]:
        """Issue a serving certificate of the cluster's CA; return `<name>.crt` and `<name>.key`."""
        return self._credentials.authority.issue_server(hosts).write(self.run_dir, name)

    def audit_mark(self) -> int:
        """Return the present end of the audit log."""
        with self.audit_log.open("rb") as log:
            return find_last_line_end(log)

    def audit_counts(self, since: int = 0) -> Counter[AuditedRequest]:
        """Count requests since a mark. The server logs a request before it sends the response."""
        with self.audit_log.open("rb") as log:
            log.seek(since)
            return count_requests(log)

    def list_node_changes(self) -> list[FieldChange]:
        """List the changed fields of Nodes since the start. Requires `audit_fields`."""
        with self.audit_log.open("rb") as log:
            return list_changes(log)

    def list_node_writes(self, since: int = 0) -> list[AuditEntry]:
        """List the writes about Nodes since a mark. Requires `audit_fields`."""
        with self.audit_log.open("rb") as log:
            log.seek(since)
            return list_node_writes(log)

    async def restart_apiserver(self) -> None:
        """Start the API server again after `apiserver.kill()`, on the same port, and wait for /readyz."""
        self.apiserver = self._start_apiserver()
        await self._wait_until_ready()

    async def back_up_etcd(self, backup: Path) -> None:
        """Copy the data of etcd to a new directory, as it would be after a crash at this moment."""
        self.etcd.pause()
        try:
            await asyncio.to_thread(shutil.copytree, self.run_dir / ETCD_DATA, backup)
        finally:
            self.etcd.resume()

    async def restore_etcd(self, backup: Path) -> None:
        """Stop all servers, replace the data of etcd by the backup, and start them again on the same ports.

        Objects and resourceVersions are those of the backup. Later versions are assigned again.
        """
        manager = self.controller_manager
        await self.stop()
        self.etcd_restores.append(self.audit_mark())
        shutil.rmtree(self.run_dir / ETCD_DATA)
        await asyncio.to_thread(shutil.copytree, backup, self.run_dir / ETCD_DATA)
        await self._start(controller_manager=manager is not None)

    def pause(self) -> None:
        """Pause all servers, which take two seconds of CPU a minute even without requests."""
        for child in self._list_children():
            child.pause()

    def resume(self) -> None:
        """Resume the servers, if they are paused."""
        for child in self._list_children():
            child.resume()

    async def stop(self) -> None:
        """Kill all servers: on SIGTERM kube-apiserver would wait long for its watches."""
        await asyncio.gather(*(child.kill() for child in self._list_children()))

    def _list_children(self) -> list[ChildProcess]:
        children = [getattr(self, name, None) for name in ("controller_manager", "apiserver", "etcd")]
        return [child for child in children if child is not None]

    async def _start(self, *, controller_manager: bool) -> None:
        etcd_flags = build_etcd_flags(self._ports["etcd"], self._ports["etcd-peer"])
        self.etcd = self._start_server("etcd", etcd_flags)
        self.apiserver = self._start_apiserver()
        await self._wait_until_ready()
        if controller_manager:
            flags = build_controller_manager_flags(grace_seconds=self._grace_seconds)
            self.controller_manager = self._start_server("kube-controller-manager", flags)

    def _start_apiserver(self) -> ChildProcess:
        flags = build_apiserver_flags(self._ports["apiserver"], self._ports["etcd"])
        return self._start_server("kube-apiserver", flags)

    def _start_server(self, server: str, flags: Sequence[str]) -> ChildProcess:
        return ChildProcess.start(server, [self._program, server, *flags], self.run_dir)

    async def _wait_until_ready(self) -> None:
        ready = partial(is_serving, f"{self.server}/readyz", tls=self.ssl_context())
        # The API server waits long for etcd, with little information: an exit of etcd must end the wait.
        async with watch_exit(self.etcd):
            await wait_until(ready, self.apiserver, what="ready", every_seconds=0.1)

    def _write_files(self, audit_policy: str) -> None:
        self._credentials.authority.issue_server(API_SERVER_HOSTS).write(self.run_dir, "apiserver")
        make_service_account_keys().write(self.run_dir, "service-account")
        manager = self.kubeconfig("system:kube-controller-manager")
        manager.rename(self.run_dir / "controller-manager.kubeconfig")
        (self.run_dir / "audit.yaml").write_text(audit_policy)
