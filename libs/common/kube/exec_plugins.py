"""Runs credential plugins by kubernetes_asyncio; imported only where needed."""

import asyncio
import shutil
import sys
from pathlib import Path
from typing import Final

import msgspec
from kubernetes_asyncio.config import ConfigException
from kubernetes_asyncio.config.exec_provider import ExecProvider
from kubernetes_asyncio.config.kube_config import ConfigNode

from libs.common.kube.kube_config import ExecCredential, ExecPlugin, KubeConfigError

PLUGIN_SECONDS: Final = 60.0  # it may query another server, but cannot prompt
_MARGIN_SECONDS: Final = 5.0  # for the guard to start and end
_TEXT_LIMIT: Final = 300  # characters of its error output
_GUARD: Final = Path(__file__).with_name("plugin_guard.py")


async def run_plugin(plugin: ExecPlugin, *, seconds: float = PLUGIN_SECONDS) -> ExecCredential:
    """Run the program without a terminal, for `seconds` at most.

    Raises KubeConfigError with the program's error output, never with what it printed: that may be a secret.
    """
    if shutil.which(plugin.command, path=plugin.env.get("PATH")) is None:
        hint = f" ({plugin.install_hint})" if plugin.install_hint else ""
        raise KubeConfigError(f"{plugin.field}: cannot run {plugin.command}: no such program{hint}")
    provider = ExecProvider(
        ConfigNode(plugin.field, {"apiVersion": plugin.api_version, "command": plugin.command})
    )
    provider.env = dict(plugin.env)
    # The library neither ends a program that hangs nor reads both outputs at once. The guard does.
    provider.args = [sys.executable, "-I", "-S", str(_GUARD), str(seconds), plugin.command, *plugin.args]
    try:
        async with asyncio.timeout(seconds + _MARGIN_SECONDS):
            status = await provider.run()
        credential = msgspec.convert(status, ExecCredential)
    except (ConfigException, TimeoutError, OSError, TypeError, ValueError, RecursionError) as error:
        # The library raises TypeError for JSON that is no object; msgspec's errors are ValueErrors.
        text = " ".join(str(error).split())[:_TEXT_LIMIT] or type(error).__name__
        raise KubeConfigError(f"{plugin.field}: {plugin.command} failed: {text}") from error
    if not credential.token and not credential.client_certificate_data:
        raise KubeConfigError(f"{plugin.field}: {plugin.command} printed no token and no certificate")
    return credential
