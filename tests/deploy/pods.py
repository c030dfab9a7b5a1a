"""A rendered pod as local processes instead of containers: its commands, volumes, probes and token.

This module does the work of a kubelet: it writes Secrets and ConfigMaps to files and requests a token. It
replaces paths below a mount in arguments by paths in the pod's directory, and ports by free ones.
"""

import asyncio
import os
import re
import sys
import sysconfig
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp

from libs.talos.talosconfig import SERVICE_ACCOUNT_FILE as TALOSCONFIG
from libs.testbed.child_process import HANG_SECONDS, ChildProcess, wait_until
from libs.testbed.helm.chart import Manifest
from libs.testbed.kube_credentials import build_kubeconfig
from libs.testbed.kubelets import KubeletFleet
from libs.testbed.ports import allocate_port
from libs.testbed.service_start import start_program

ROOT: Final = Path(__file__).parents[2]
ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
IP: Final = "127.0.0.1"
_PROGRAMS: Final = {
    "python": sys.executable,
    "nats-server": str(Path(sysconfig.get_path("scripts")) / "nats-server"),
    "talos-ccm": str(Path(sysconfig.get_path("scripts")) / "talos-ccm"),
}
# A container does not inherit the environment of this process.
_NOTHING: Final = dict.fromkeys(
    (
        *("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "POD_NAME"),
        *("NATS_URL", "NATS_NKEY_FILE", "NATS_CA_FILE"),
        *("TALOSCONFIG", "TALOS_HOME", "TALOS_ENDPOINTS", "OTEL_EXPORTER_OTLP_ENDPOINT"),
    ),
    "",
)
_ONE_SECOND: Final = aiohttp.ClientTimeout(total=1)


async def token_of(kubelets: KubeletFleet, namespace: str, account: str) -> str:
    """Request a token as a kubelet does (TokenRequest)."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    answer = await kubelets.request("POST", path, body=body)
    assert answer.status == 201, answer
    return str(answer.body["status"]["token"])


class Pod:
    """The pod of one workload; `server` is the API server for containers that mount a token."""

    def __init__(self, workload: Manifest, folder: Path, server: str) -> None:
        self.name = f"{workload['metadata']['name']}-0"
        self.namespace: str = workload["metadata"]["namespace"]
        self.spec: dict[str, Any] = workload["spec"]["template"]["spec"]
        self.children: dict[str, ChildProcess] = {}
        self._folder = folder
        self._server = server
        self._ports: dict[tuple[str, str], int] = {}

    @classmethod
    async def mounted(cls, workload: Manifest, folder: Path, server: str, kubelets: KubeletFleet) -> "Pod":
        """Create the pod with all its volumes. Raises AssertionError if a source does not exist."""
        pod = cls(workload, folder, server)
        for volume in (*pod.spec["volumes"], *pod._token_volume()):
            place = pod.volume(volume["name"])
            place.mkdir(parents=True, exist_ok=True)
            for name, content in (await pod._content(volume, kubelets)).items():
                (place / name).write_bytes(content)
        return pod

    def volume(self, name: str) -> Path:
        """The directory of that volume."""
        return self._folder / "volumes" / name

    def container(self, name: str) -> dict[str, Any]:
        """The rendered container."""
        found: list[dict[str, Any]] = self.spec.get("initContainers", []) + self.spec["containers"]
        return next(container for container in found if container["name"] == name)

    def port(self, container: str, name: str) -> int:
        """The local port for a named port of a container."""
        return self._ports.setdefault((container, name), allocate_port())

    def environment(self, name: str) -> dict[str, str]:
        """The container's environment, with a kubeconfig instead of the files of a ServiceAccount."""
        mounts = self._mounts(name)
        variables = {
            each["name"]: _moved(self._value(each), mounts) for each in self.container(name).get("env", ())
        }
        if ACCOUNT in mounts:
            variables["KUBECONFIG"] = str(self._kubeconfig(mounts[ACCOUNT], variables))
        if str(TALOSCONFIG.parent) in mounts:
            variables["TALOSCONFIG"] = str(mounts[str(TALOSCONFIG.parent)] / TALOSCONFIG.name)
        return variables

    def start(self, name: str, *more: str, env: Mapping[str, str] | None = None) -> ChildProcess:
        """Start the container's command with its arguments; `more` replaces flags of the same name."""
        container, mounts = self.container(name), self._mounts(name)
        replaced = tuple(flag.partition("=")[0] + "=" for flag in more)
        command: list[str] = container["command"]
        arguments: list[str] = container.get("args", [])
        program, *words = command + [word for word in arguments if not word.startswith(replaced)]
        given = [*(_moved(word, mounts) for word in words), *more]
        whole = self._whole(name, env)
        if program == "python":
            assert given[0] == "-m"
            child = start_program(name, given[1], given[2:], self._folder, whole)
        else:
            child = ChildProcess.start(name, [_PROGRAMS[program], *given], self._folder, env=whole)
        self.children[name] = child
        return child

    async def execute(self, name: str, program: str, *words: str, env: Mapping[str, str]) -> bytes:
        """Run a program in the container, as by `kubectl exec`, and return its output."""
        process = await asyncio.create_subprocess_exec(
            *(_PROGRAMS[program], *words),
            cwd=self._folder,
            env={**os.environ, "HOME": str(self._folder), **self._whole(name, env)},
            stdout=asyncio.subprocess.PIPE,
        )
        return (await process.communicate())[0]

    async def until(self, name: str, probe: str = "readinessProbe", seconds: float = HANG_SECONDS) -> None:
        """Wait until the container's probe succeeds."""
        asks = self.container(name)[probe]["httpGet"]
        scheme = asks.get("scheme", "HTTP").lower()
        url = f"{scheme}://{IP}:{self.port(name, asks['port'])}{asks['path']}"
        async with aiohttp.ClientSession(timeout=_ONE_SECOND) as session:

            async def succeeds() -> bool:
                try:
                    async with session.get(url, ssl=False) as answer:
                        return answer.status == 200
                except (aiohttp.ClientError, TimeoutError):
                    return False

            await wait_until(succeeds, self.children[name], what=f"healthy ({probe})", seconds=seconds)

    async def stop(self) -> None:
        """Stop all containers."""
        await asyncio.gather(*(child.stop(30) for child in self.children.values()))

    def _whole(self, name: str, more: Mapping[str, str] | None) -> dict[str, str]:
        return {**_NOTHING, **self.environment(name), **(more or {}), "PYTHONPATH": str(ROOT)}

    def _mounts(self, name: str) -> dict[str, Path]:
        listed = self.container(name).get("volumeMounts", ())
        mounts = {mount["mountPath"]: self.volume(mount["name"]) for mount in listed}
        for volume in self._token_volume():
            mounts.setdefault(ACCOUNT, self.volume(volume["name"]))
        return mounts

    def _token_volume(self) -> list[dict[str, Any]]:
        """The token volume that the API server adds to a pod by default."""
        if not self.spec.get("automountServiceAccountToken", True):
            return []
        authority = {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
        sources = [{"serviceAccountToken": {"path": "token"}}, {"configMap": authority}]
        return [{"name": "kube-api-access", "projected": {"sources": sources}}]

    def _value(self, variable: dict[str, Any]) -> str:
        if "value" in variable:
            return str(variable["value"])
        field = variable["valueFrom"]["fieldRef"]["fieldPath"]
        return {"status.podIP": IP, "metadata.name": self.name}[field]

    def _kubeconfig(self, account: Path, env: Mapping[str, str]) -> Path:
        """Write a kubeconfig with the token; its server is that of the environment, else the cluster's."""
        host, port = env.get("KUBERNETES_SERVICE_HOST"), env.get("KUBERNETES_SERVICE_PORT")
        server = f"https://{host}:{port}" if host else self._server
        cluster = {"server": server, "certificate-authority": str(account / "ca.crt")}
        path = self._folder / "kubeconfig"
        path.write_bytes(build_kubeconfig("pod", cluster, {"tokenFile": str(account / "token")}))
        return path

    async def _content(self, volume: dict[str, Any], kubelets: KubeletFleet) -> dict[str, bytes]:
        objects = f"/api/v1/namespaces/{self.namespace}"
        match volume:
            case {"emptyDir": _}:
                return {}
            case {"configMap": {"name": name}}:
                found = await kubelets.request("GET", f"{objects}/configmaps/{name}")
                assert found.status == 200, found
                return {key: text.encode() for key, text in found.body["data"].items()}
            case {"secret": {"secretName": name}}:
                found = await kubelets.request("GET", f"{objects}/secrets/{name}")
                assert found.status == 200, found
                return {key: b64decode(text) for key, text in found.body["data"].items()}
            case {"serviceAccountToken": {"path": path}}:
                account = self.spec["serviceAccountName"]
                return {path: (await token_of(kubelets, self.namespace, account)).encode()}
            case {"downwardAPI": {"items": [{"path": path}]}}:
                return {path: self.namespace.encode()}
            case {"projected": {"sources": sources}}:
                parts = [await self._content(source, kubelets) for source in sources]
                return {name: content for part in parts for name, content in part.items()}
        raise AssertionError(f"unsupported kind of volume: {volume}")


def _moved(word: str, mounts: Mapping[str, Path]) -> str:
    """Replace a path below a mount in an argument or in its value."""
    for path, place in mounts.items():
        if found := re.fullmatch(rf"(--[a-z-]+=)?{re.escape(path)}(/.*)?", word):
            return f"{found[1] or ''}{place}{found[2] or ''}"
    return word
