"""The servers of the demo: what their cloud says of them, and what is left when it loses two."""

from pathlib import Path

import aiohttp
import pytest

from cli.demo.demo_cloud import DemoCloud, lose_servers
from cli.demo.demo_cluster import make_kubelet, make_machines
from libs.testbed.kubelets import KubeletFleet
from libs.testbed.machine_fleet import MachineFleet
from libs.testbed.sim_apiserver.server import SimApiServer

pytestmark = pytest.mark.real_servers


def read_text(path: str) -> str:
    return Path(path).read_text()


async def read_servers(cloud: DemoCloud) -> dict[str, tuple[str, str]]:
    """providerID and status of each server, by its name, as the token of the account reads them."""
    values = dict(flag.removeprefix("--").partition("=")[::2] for flag in cloud.flags)
    headers = {"Authorization": f"Bearer {read_text(values['cloud-credential-file'])}"}
    url = f"{values['cloud-endpoint']}/servers?per_page=50"
    async with aiohttp.ClientSession(headers=headers) as session, session.get(url) as answer:
        servers = (await answer.json())["servers"]
    return {each["name"]: (f"hcloud://{each['id']}", each["status"]) for each in servers}


@pytest.mark.parametrize(
    ("nodes", "off", "gone"), [(9, "", ""), (12, "hcloud-007", "hcloud-011")], ids=["few", "enough"]
)
async def test_one_of_enough_servers_is_off_one_is_deleted_and_both_nodes_are_silent(
    tmp_path: Path, nodes: int, off: str, gone: str
):
    machines = make_machines(nodes)
    provider_ids = {each.name: each.platform.provider_id for each in machines if each.platform}
    async with (
        SimApiServer.start(tmp_path / "kubernetes", has_node_lifecycle=True) as api_server,
        MachineFleet.start_simulated(tmp_path / "talos") as fleet,
        KubeletFleet.start(api_server) as kubelets,
        DemoCloud.start(tmp_path) as cloud,
    ):
        await fleet.put_machines(*machines)
        cloud.add_servers(machines)
        before = await read_servers(cloud)
        assert before == {name: (provider_ids[name], "running") for name in before}
        await kubelets.join_all(map(make_kubelet, machines))
        told = await lose_servers(cloud, fleet, kubelets, machines)
        assert [line.split()[1] for line in told] == [name for name in (off, gone) if name]
        after = {name: status for name, (_, status) in (await read_servers(cloud)).items()}
        assert before.keys() - after.keys() == {gone} - {""}
        assert {name for name, status in after.items() if status == "off"} == {off} - {""}
        found = (await kubelets.request("GET", "/api/v1/nodes")).body["items"]
        silent = {
            each["metadata"]["name"]
            for each in found
            for condition in each["status"]["conditions"]
            if (condition["type"], condition["status"]) == ("Ready", "Unknown")
        }
        assert silent == {off, gone} - {""}
