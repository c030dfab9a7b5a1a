"""Runs a command in a container of a pod, as `kubectl exec` does: WebSocket, v4.channel.k8s.io."""

import asyncio
from typing import Final
from urllib.parse import quote, urlencode

import msgspec

from libs.common.json_errors import JSON_ERRORS
from libs.common.kube.api import KubeApi
from libs.common.kube.errors import ServerError, Unreachable
from libs.common.kube.request import Request

# The API server forwards this protocol to the kubelet. It terminates v5 itself and uses another one there.
PROTOCOL: Final = "v4.channel.k8s.io"
_OUT, _ERR, _STATUS = 1, 2, 3  # channels: the first byte of each message
_MOST_BYTES: Final = 64 * 2**20
_QUOTED: Final = 300  # characters of output that an error quotes
_DIGITS: Final = 10  # of an exit status; the kubelet is not trusted


class ExecResult(msgspec.Struct, frozen=True, kw_only=True):
    """The exit status and output of a command."""

    exit_status: int
    stdout: bytes
    stderr: bytes


class _Cause(msgspec.Struct, frozen=True):
    reason: str = ""
    message: str = ""


class _Details(msgspec.Struct, frozen=True):
    causes: tuple[_Cause, ...] | None = None


class _Status(msgspec.Struct, frozen=True):
    status: str = ""
    reason: str = ""
    message: str = ""
    details: _Details | None = None


async def exec_in_pod(
    api: KubeApi,
    *,
    namespace: str,
    pod: str,
    container: str,
    command: tuple[str, ...],
    timeout_seconds: float,
) -> ExecResult:
    """Run a command without input until it ends. Raises KubeError; Unreachable also after the timeout."""
    query = urlencode(
        [("container", container), ("stdout", "true"), ("stderr", "true"), *(("command", c) for c in command)]
    )
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(pod, safe='')}/exec?{query}"
    request = Request(verb="create", resource="pods/exec", name=f"{namespace}/{pod}", path=path)
    output = {_OUT: bytearray(), _ERR: bytearray(), _STATUS: bytearray()}
    try:
        async with (
            asyncio.timeout(timeout_seconds),
            api.transport.open_web_socket(request, protocol=PROTOCOL) as next_message,
        ):
            while (message := await next_message()) is not None:
                if message and message[0] in output:
                    output[message[0]] += message[1:]
                if sum(map(len, output.values())) > _MOST_BYTES:
                    text = f"the output of {command[0]} exceeds {_MOST_BYTES} bytes"
                    raise ServerError(text, request=str(request))
    except TimeoutError as error:
        text = f"{' '.join(command)} did not end within {timeout_seconds:g} s"
        raise Unreachable(text, request=str(request), reason="Timeout") from error
    return ExecResult(
        exit_status=_exit_status(bytes(output[_STATUS]), request, bytes(output[_ERR])),
        stdout=bytes(output[_OUT]),
        stderr=bytes(output[_ERR]),
    )


def _exit_status(data: bytes, request: Request, output: bytes) -> int:
    """Return the exit status. Raises KubeError if the command did not run or its end is unknown."""
    try:
        status = msgspec.json.decode(data, type=_Status)
    except JSON_ERRORS as error:
        tail = output[-_QUOTED:].decode(errors="replace").strip()
        text = f"the connection ended before the command did{': ' + tail if tail else ''}"
        raise Unreachable(text, request=str(request), reason="Unreachable") from error
    if status.status == "Success":
        return 0
    for cause in (status.details and status.details.causes) or ():
        code = cause.message
        if cause.reason == "ExitCode" and code.isascii() and code.isdigit() and len(code) <= _DIGITS:
            return int(code)
    why = status.message or status.reason or "the command did not run"
    raise ServerError(why[:_QUOTED], request=str(request))
