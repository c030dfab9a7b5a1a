"""A rendered pod as processes of this machine: its commands, volumes, probes, token; and no container.

What a kubelet does is done here: Secrets and ConfigMaps are files, a token is asked for. Paths below a mount
lie in the pod's directory, so an argument that names one is changed; so are ports, which are free ones.
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
import msgspec

from libs.talos.talosconfig import SERVICE_ACCOUNT_FILE as TALOSCONFIG
from libs.testbed.child_process import ChildProcess, allocate_port, wait_until
from libs.testbed.helm.chart import Manifest
from libs.testbed.kubelets import KubeletFleet

ROOT: Final = Path(__file__).parents[2]
ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
IP: Final = "127.0.0.1"
_PROGRAMS: Final = {
    "python": sys.executable,
    "nats-server": str(Path(sysconfig.get_path("scripts")) / "nats-server"),
    "talos-ccm": str(Path(sysconfig.get_path("scripts")) / "talos-ccm"),
}
# A container starts with no environment but its own.
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
    """A token as a kubelet asks for it (TokenRequest)."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    answer = await kubelets.request("POST", path, body=body)
    assert answer.status == 201, answer
    return str(answer.body["status"]["token"])


class Pod:
    """Of one workload; `server` is where the API server is for whoever mounts a token."""

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
        """With all of its volumes; AssertionError if one is made of what does not exist."""
        pod = cls(workload, folder, server)
        await pod.mount(kubelets)
        return pod

    async def mount(self, kubelets: KubeletFleet) -> None:
        """Write what its volumes hold; again, once the objects have changed."""
        for volume in (*self.spec["volumes"], *self._token_volume()):
            place = self.volume(volume["name"])
            place.mkdir(parents=True, exist_ok=True)
            for name, content in (await self._content(volume, kubelets)).items():
                (place / f".{name}").write_bytes(content)
                (place / f".{name}").rename(place / name)

    def volume(self, name: str) -> Path:
        """Where that volume is."""
        return self._folder / "volumes" / name

    def container(self, name: str) -> dict[str, Any]:
        """As it is rendered."""
        found: list[dict[str, Any]] = self.spec.get("initContainers", []) + self.spec["containers"]
        return next(container for container in found if container["name"] == name)

    def port(self, container: str, name: str) -> int:
        """What stands for a named port of a container."""
        return self._ports.setdefault((container, name), allocate_port())

    def environment(self, name: str) -> dict[str, str]:
        """What the container is told, and a kubeconfig in place of the files that a client looks for."""
        mounts = self._mounts(name)
        told = {
            each["name"]: _moved(self._value(each), mounts) for each in self.container(name).get("env", ())
        }
        if ACCOUNT in mounts:
            told["KUBECONFIG"] = str(self._kubeconfig(mounts[ACCOUNT], told))
        if str(TALOSCONFIG.parent) in mounts:
            told["TALOSCONFIG"] = str(mounts[str(TALOSCONFIG.parent)] / TALOSCONFIG.name)
        return told

    def start(self, name: str, *more: str, env: Mapping[str, str] | None = None) -> ChildProcess:
        """The container's command with its arguments; `more` flags stand for those that say the same."""
        container, mounts = self.container(name), self._mounts(name)
        said = tuple(flag.partition("=")[0] + "=" for flag in more)
        command: list[str] = container["command"]
        arguments: list[str] = container.get("args", [])
        program, *words = command + [word for word in arguments if not word.startswith(said)]
        argv = [_PROGRAMS[program], *(_moved(word, mounts) for word in words), *more]
        self.children[name] = ChildProcess.start(name, argv, self._folder, env=self._whole(name, env))
        return self.children[name]

    async def execute(self, name: str, program: str, *words: str, env: Mapping[str, str]) -> bytes:
        """What a program says that somebody runs in the container, as by `kubectl exec`."""
        process = await asyncio.create_subprocess_exec(
            *(_PROGRAMS[program], *words),
            cwd=self._folder,
            env={**os.environ, "HOME": str(self._folder), **self._whole(name, env)},
            stdout=asyncio.subprocess.PIPE,
        )
        return (await process.communicate())[0]

    async def until(self, name: str, probe: str = "readinessProbe", seconds: float = 60) -> None:
        """The container's own probe succeeds."""
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

            await wait_until(succeeds, self.children[name], what=f"well ({probe})", seconds=seconds)

    async def stop(self) -> None:
        """All of its containers, in order."""
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
        """What the API server adds to a pod that does not forbid it."""
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

    def _kubeconfig(self, account: Path, told: Mapping[str, str]) -> Path:
        """The token's files, at the server that the container is told of, else at the cluster's."""
        host, port = told.get("KUBERNETES_SERVICE_HOST"), told.get("KUBERNETES_SERVICE_PORT")
        server = f"https://{host}:{port}" if host else self._server
        cluster = {"server": server, "certificate-authority": str(account / "ca.crt")}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "pod",
            "clusters": [{"name": "pod", "cluster": cluster}],
            "users": [{"name": "pod", "user": {"tokenFile": str(account / "token")}}],
            "contexts": [{"name": "pod", "context": {"cluster": "pod", "user": "pod"}}],
        }
        path = self._folder / "kubeconfig"
        path.write_bytes(msgspec.yaml.encode(config))
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
        raise AssertionError(f"a volume of a kind that no pod of ours has had so far: {volume}")


def _moved(word: str, mounts: Mapping[str, Path]) -> str:
    """An argument that is, or whose value is, a path below a mount."""
    for path, place in mounts.items():
        if found := re.fullmatch(rf"(--[a-z-]+=)?{re.escape(path)}(/.*)?", word):
            return f"{found[1] or ''}{place}{found[2] or ''}"
    return word
