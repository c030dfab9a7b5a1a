"""Credentials from a program in the kubeconfig (client.authentication.k8s.io), run as `kubectl` does."""

import asyncio
from datetime import datetime
from typing import Final

import msgspec

from libs.common.kube.kube_config import ExecPlugin, KubeConfigError

_PLUGIN_SECONDS: Final = 60.0  # it may query another server, but cannot prompt
_TEXT_LIMIT: Final = 300  # characters of its error output


class ExecCredential(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A token, or a client certificate with its key, and their expiry."""

    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime | None = None

    def __repr__(self) -> str:
        return f"ExecCredential(until {self.expiration_timestamp})"  # a task's repr shows its result


class _Printed(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    status: ExecCredential


async def run_plugin(plugin: ExecPlugin) -> ExecCredential:
    """Run the program without a terminal. Raises KubeConfigError, with the program's error output."""
    exec_info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": {"interactive": False}}
    environment = {**plugin.env, "KUBERNETES_EXEC_INFO": msgspec.json.encode(exec_info).decode()}
    try:
        process = await asyncio.create_subprocess_exec(
            plugin.command,
            *plugin.args,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        hint = f" ({plugin.install_hint})" if plugin.install_hint else ""
        raise KubeConfigError(
            f"{plugin.field}: cannot run {plugin.command}: {error.strerror}{hint}"
        ) from error
    try:
        async with asyncio.timeout(_PLUGIN_SECONDS):
            printed, error_output = await process.communicate()
    except TimeoutError as error:
        raise KubeConfigError(f"{plugin.field}: {plugin.command} took over {_PLUGIN_SECONDS:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        reason = " ".join(error_output.decode(errors="replace").split())[:_TEXT_LIMIT]
        raise KubeConfigError(
            f"{plugin.field}: {plugin.command} ended with status {process.returncode}: {reason}"
        )
    return _credential(plugin, printed)


def _credential(plugin: ExecPlugin, printed: bytes) -> ExecCredential:
    try:
        answer = msgspec.json.decode(printed, type=_Printed)
    except (msgspec.DecodeError, RecursionError) as error:
        # Never the text itself: it may contain a secret.
        raise KubeConfigError(
            f"{plugin.field}: {plugin.command} printed no ExecCredential: {error}"
        ) from error
    if (answer.api_version, answer.kind) != (plugin.api_version, "ExecCredential"):
        raise KubeConfigError(
            f"{plugin.field}: {plugin.command} printed {answer.kind} of {answer.api_version}, "
            f"not ExecCredential of {plugin.api_version}"
        )
    if not answer.status.token and not answer.status.client_certificate_data:
        raise KubeConfigError(f"{plugin.field}: {plugin.command} printed no token and no certificate")
    return answer.status
