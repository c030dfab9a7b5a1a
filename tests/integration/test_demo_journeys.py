"""What the demo makes of the logs of the real services, where a node does not move on."""

from datetime import UTC, datetime
from pathlib import Path

from cli.demo.journeys import Journeys
from cli.demo.log_line import LogLine, read_line
from cli.demo.parts import running
from cli.demo.wanted import Wanted
from cli.demo.watching import following
from libs.testbed.kubelets import Kubelet
from libs.testbed.machines import a_machine
from tests.bus_actors import eventually


async def test_a_node_whose_machine_is_silent_is_blocked_and_the_demo_knows_why(tmp_path: Path):
    machine = a_machine("silent-1", "10.64.0.9", platform="metal")
    journeys = Journeys()
    started: list[str] = []
    async with running(tmp_path, Wanted(bus="memory"), lambda what, _: started.append(what)) as parts:
        assert parts.nats is None
        assert len(started) == 3
        await parts.machines.put(machine)
        await parts.machines.fault(machine.id, unavailable=True)
        (log,) = (child.log for child in parts.services.children.values())
        with following([log], journeys) as logs:
            journeys.joined(machine.name, "metal", datetime.now(UTC))
            await parts.kubelets.join(Kubelet.on(machine))

            async def both_told() -> bool:
                logs.catch_up()
                return {line.service for line in lines_about_trouble(log)} == {"metadata", "labeler"}

            await eventually(both_told, "metadata and labeler say what is wrong")
            logs.catch_up()

    (journey,) = journeys
    assert journey.state == "blocked"
    assert journey.observed_at
    assert journey.answered_at is None
    assert all("10.64.0.9" in str(line.trouble) for line in lines_about_trouble(log))
    assert "10.64.0.9" in journey.why_not_ready


def lines_about_trouble(log: Path) -> list[LogLine]:
    lines = map(read_line, log.read_bytes().splitlines())
    return [line for line in lines if line and line.trouble]
