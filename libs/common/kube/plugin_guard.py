"""Runs a credential plugin as its parent process: `plugin_guard.py SECONDS COMMAND [ARGUMENT]...`.

The library that starts plugins cannot end one that hangs. A program of its own, because it needs nothing
but the standard library, and ends the plugin also when the process that wants the credential has ended.
"""

import json
import os
import signal
import subprocess
import sys

_MOST_ERROR_BYTES = 4096


def main(seconds: float, command: list[str]) -> int:
    """Run the command without a terminal; return its exit status, 124 after `seconds`."""
    exec_info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
    exec_info["spec"]["interactive"] = False
    plugin = subprocess.Popen(  # noqa: S603 - the kubeconfig names the program
        command,
        env={**os.environ, "KUBERNETES_EXEC_INFO": json.dumps(exec_info)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # no terminal, and a group that can be ended with all its processes
    )
    try:
        printed, error_output = plugin.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        sys.stderr.write(f"it took over {seconds:g} s")
        return 124
    finally:
        if plugin.returncode is None:
            os.killpg(plugin.pid, signal.SIGKILL)
    sys.stdout.buffer.write(printed)
    # The library reads it only after the end of the output: more than a pipe takes would block both.
    text = error_output[:_MOST_ERROR_BYTES].decode(errors="replace")
    sys.stderr.write(text.encode("ascii", "replace").decode())  # the library decodes it strictly
    return plugin.returncode if plugin.returncode >= 0 else 128 - plugin.returncode


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
