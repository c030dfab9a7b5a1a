"""Rules in real processes: a mounted file that changes, a bad one in between, a bad one at the start."""

from pathlib import Path

from libs.testbed.kubelets import KubeletFleet, SimKubelet
from libs.testbed.machine_fleet import MachineFleet, make_machine
from tests.bus_actors import wait_until
from tests.integration.conftest import StartServices
from tests.service_flow import MountedConfigMap

EVENTS = "/api/v1/namespaces/default/events"
REJECTED = "reason=CloudConfigRejected"
BAD = 'transformations:\n- labels:\n    team: "{{ .Zone "\n'


def rules(team: str) -> str:
    return f"transformations:\n- name: team\n  labels: {{team: {team}, node-role.kubernetes.io/web: ''}}\n"


async def test_a_mounted_file_that_changes_is_obeyed_and_a_bad_one_is_told_of(
    tmp_path: Path, start_services: StartServices, kubelets: KubeletFleet, machines: MachineFleet
):
    await kubelets.request("DELETE", f"{EVENTS}?fieldSelector={REJECTED}")  # one is written in a minute
    folder = tmp_path / "config"
    folder.mkdir()
    mounted = MountedConfigMap(folder, rules("red"))
    machine = make_machine("ruled.example.com", "10.211.0.1", platform="metal")
    await machines.put_machines(machine)
    services = await start_services(flags=[f"--cloud-config={mounted.path}"])
    await kubelets.join(SimKubelet.of_machine(machine))

    async def labels() -> dict[str, str]:
        node = await kubelets.request("GET", f"/api/v1/nodes/{machine.name}")
        found: dict[str, str] = node.body["metadata"]["labels"]
        return found

    async def team_is(team: str) -> bool:
        return (await labels()).get("team") == team

    await wait_until(lambda: team_is("red"), "the rule of the start is obeyed")
    assert (await labels())["node-role.kubernetes.io/web"] == ""
    mounted.replace_text(BAD)

    async def is_unready() -> bool:
        report = await services.fetch_page("labeler", "/readyz?verbose")
        return "[-]labeler failed: " in report and 'line 3: transformations[0].labels["team"]' in report

    await wait_until(is_unready, "the mistake is reported")
    assert ('talosccm_rules_reload_success{service="labeler"} 0.0') in await services.fetch_page(
        "labeler", "/metrics"
    )

    async def is_told() -> bool:
        events = (await kubelets.request("GET", f"{EVENTS}?fieldSelector={REJECTED}")).body["items"]
        return any(str(mounted.path) in event["message"] for event in events)

    await wait_until(is_told, "there is an Event")
    assert await team_is("red")
    mounted.replace_text(rules("blue"))
    await wait_until(lambda: team_is("blue"), "the good one is obeyed", 15)  # what is promised
    await services.wait_until_ready()
    await kubelets.delete_node(machine.name)
    await machines.delete_machines(machine.id)
