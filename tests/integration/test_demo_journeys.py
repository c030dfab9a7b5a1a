"""What the demo makes of the logs of the real services, where a node does not move on."""

from datetime import UTC, datetime
from pathlib import Path

from cli.demo.demo_cluster import start_cluster
from cli.demo.demo_options import DemoOptions
from cli.demo.log_line import LogLine, parse_log_line
from cli.demo.node_progress import DemoProgress
from cli.demo.progress_sources import follow_logs
from libs.testbed.kubelets import SimKubelet
from libs.testbed.machine_fleet import make_machine
from tests.bus_actors import wait_until


async def test_a_node_whose_machine_is_silent_is_blocked_and_the_demo_knows_why(tmp_path: Path):
    machine = make_machine("silent-1", "10.64.0.9", platform="metal")
    journeys = DemoProgress()
    started: list[str] = []
    async with start_cluster(
        tmp_path, DemoOptions(bus="memory"), lambda what, _: started.append(what)
    ) as parts:
        assert parts.nats is None
        assert len(started) == 3
        await parts.machines.put_machines(machine)
        await parts.machines.set_faults(machine.id, unavailable=True)
        (log,) = (child.log for child in parts.services.children.values())
        with follow_logs([log], journeys) as logs:
            journeys.add_node(machine.name, "metal", datetime.now(UTC))
            await parts.kubelets.join(SimKubelet.of_machine(machine))

            async def both_told() -> bool:
                logs.read_new_lines()
                return {line.service for line in lines_about_trouble(log)} == {"metadata", "labeler"}

            await wait_until(both_told, "metadata and labeler say what is wrong")
            logs.read_new_lines()

    (journey,) = journeys
    assert journey.state == "blocked"
    assert journey.observed_at
    assert journey.answered_at is None
    assert all("10.64.0.9" in str(line.trouble) for line in lines_about_trouble(log))
    assert "10.64.0.9" in journey.why_not_ready


def lines_about_trouble(log: Path) -> list[LogLine]:
    lines = map(parse_log_line, log.read_bytes().splitlines())
    return [line for line in lines if line and line.trouble]
