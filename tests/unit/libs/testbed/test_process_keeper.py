"""A process that ends is restarted, and a restart that fails is no secret."""

from pathlib import Path

import pytest

from libs.testbed.child_process import ChildProcess
from libs.testbed.process_keeper import keep_running
from libs.testbed.service_processes import ServiceProcesses
from tests.bus_actors import wait_until


async def test_the_error_of_a_restart_ends_the_block(tmp_path: Path):
    services = ServiceProcesses()
    ended = services.children["csr"] = ChildProcess.start("csr", ["true"], tmp_path)
    await ended.wait()
    with pytest.raises(KeyError, match="csr"):  # nothing tells how to start it
        async with keep_running(services) as restarted:
            await wait_until(lambda: restarted == ["csr"], "the restart is tried")
