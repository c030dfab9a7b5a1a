"""Random schedules of faults, attacks and operators: no Node of an instance that exists is deleted."""

import os
from random import Random

import msgspec
import pytest

from libs.common.contract.instances import RECORD_ANNOTATION
from tests.builders import NOW
from tests.model.instance_world import ACCOUNTS, CloudProcess, World

# by hand: INSTANCE_SCHEDULES=1000
SCHEDULES = int(os.environ.get("INSTANCE_SCHEDULES", "40"))
MINUTES = 120


def _pick(world: World) -> str:
    return world.random.choice(sorted(world.nodes) or [""])


def _pick_cloud(world: World) -> CloudProcess:
    return world.random.choice(world.clouds)


def swap_token(world: World) -> None:
    _pick_cloud(world).load(world.random.choice(("", "a", "b", "a-2", "b-2", "foreign")))


def restore_tokens(world: World) -> None:
    for cloud in world.clouds:
        cloud.load(cloud.account)


def fail(world: World) -> None:
    _pick_cloud(world).fails_until = world.minute + world.random.choice((1, 5, 30))


def fail_lists(world: World) -> None:
    """Half a page, which is no list."""
    _pick_cloud(world).lists_fail_until = world.minute + world.random.choice((1, 30))


def empty_lists(world: World) -> None:
    _pick_cloud(world).lists_are_empty_until = world.minute + world.random.choice((1, 30))


def restart_cloud(world: World) -> None:
    """Another process of the account, with what its file has now."""
    old = world.clouds.pop(world.random.randrange(len(world.clouds)))
    world.clouds.append(CloudProcess(world, old.account, old.token, loaded_at=world.now()))


def run_two_processes(world: World) -> None:
    """A second process of an account, perhaps with an older token, until it ends."""
    if len(world.clouds) > len(ACCOUNTS):
        del world.clouds[len(ACCOUNTS) :]
    else:
        token = world.random.choice(("", "a", "b", "foreign"))
        account = world.random.choice(ACCOUNTS)
        world.clouds.append(CloudProcess(world, account, token, loaded_at=world.now()))


def stop_kubernetes(world: World) -> None:
    world.kubernetes_fails_until = world.minute + world.random.choice((2, 20))


def cut(world: World) -> None:
    for server in world.servers.values():
        server.is_reachable = server.is_reachable and world.random.random() < 0.4


def heal(world: World) -> None:
    for server in world.servers.values():
        server.is_reachable = True


def hide(world: World) -> None:
    """The cloud lies about one server for less than the evidence takes."""
    for server in world.servers.values():
        if world.random.random() < 0.3 and not server.has_moved:
            server.hidden_until = world.minute + world.random.choice((1, 5, 9))


def move(world: World) -> None:
    """A server moves to the project of the other account, whose token is the right one."""
    server = world.servers.get(world.machines.get(_pick(world), ""))
    if server is not None and server.hidden_until <= world.minute:  # else two clouds lie one after the other
        server.project, server.has_moved = "b" if server.project == "a" else "a", True
        restore_tokens(world)


def rename(world: World) -> None:
    if (server := world.servers.get(world.machines.get(_pick(world), ""))) is not None:
        server.name += "-renamed"


def rebuild(world: World) -> None:
    """Another server with the same name joins as the same Node, which keeps its providerID."""
    name = _pick(world)
    if (server := world.servers.get(world.machines.get(name, ""))) is not None:
        world.destroy(name)
        rebuilt = world.create(name, server.project)
        rebuilt.is_reachable = world.random.random() < 0.7
        rebuilt.name += world.random.choice(("", "-rebuilt"))
        world.metadata_lags_until = world.minute + world.random.choice((0, 2))


def recreate(world: World) -> None:
    """The Node object is deleted, and the kubelet registers again."""
    name = _pick(world)
    if (server := world.servers.get(world.machines.get(name, ""))) is not None and server.is_reachable:
        world.created += 1
        world.index.remove_node(name)
        world.add_node(name, f"uid-{world.created}", server)


def forge(world: World) -> None:
    """A kubelet copies the record of another Node."""
    name, other = _pick(world), _pick(world)
    if name:
        node = world.nodes[name]
        text = world.nodes[other].annotations.get(RECORD_ANNOTATION, "{}")
        metadata = msgspec.structs.replace(
            node.metadata, annotations={**node.annotations, RECORD_ANNOTATION: text}
        )
        world.nodes[name] = msgspec.structs.replace(node, metadata=metadata)


def replay(world: World) -> None:
    for _ in range(5):
        if world.published:
            world.publish(world.random.choice(world.published))


def wipe(world: World) -> None:
    """NATS loses everything; each process publishes its reports again."""
    world.stream.clear()
    world.index.clear()
    world.index.forget_instances()
    for cloud in world.clouds:
        cloud.reports = {name: (report, -1e9) for name, (report, _) in cloud.reports.items()}


def destroy(world: World) -> None:
    world.destroy(_pick(world))


HAPPENINGS = (
    swap_token,
    restore_tokens,
    fail,
    fail_lists,
    empty_lists,
    restart_cloud,
    run_two_processes,
    stop_kubernetes,
    cut,
    heal,
    hide,
    move,
    rename,
    rebuild,
    recreate,
    forge,
    replay,
    World.restart_lifecycle,
    wipe,
    destroy,
)


def a_world(seed: int) -> World:
    world = World(Random(seed))
    world.projects_without_anchor = {each for each in ACCOUNTS if world.random.random() < 0.3}
    for number in range(world.random.randint(1, 6)):
        world.join(f"web-{number}", world.random.choice(ACCOUNTS))
    return world


@pytest.mark.parametrize("seed", range(SCHEDULES))
async def test_no_schedule_deletes_the_node_of_an_instance_that_exists(seed: int):
    world = a_world(seed)
    for _ in range(MINUTES):
        if world.random.random() < 0.15:
            happening = world.random.choice(HAPPENINGS)
            world.story.append(f"{world.minute:g}: {happening.__name__}")
            happening(world)
        await world.step()
    assert not world.wrong, (world.wrong, world.story)


@pytest.mark.parametrize(("nodes", "lost"), [(1, 1), (2, 1), (30, 30), (6, 6)])
async def test_deleted_instances_take_their_nodes_along_within_90_minutes_with_one_restart_between(
    nodes: int, lost: int
):
    world = World(Random(0))
    for number in range(nodes):
        world.join(f"web-{number}", "a")
    await world.step()
    for number in range(lost):
        world.destroy(f"web-{number}")
    for minute in range(90):
        if minute == 12:
            world.restart_lifecycle()
        await world.step()
    assert len(world.deleted) == lost
    assert not world.wrong
    assert world.now() > NOW


async def test_a_rebuilt_server_that_is_lost_before_metadata_notices_it_keeps_its_node():
    """Its kubelet reports another UUID, while the last reports of machine and cloud are the former one's."""
    world = World(Random(0))
    world.join("web-0", "a")
    world.create("other", "a")
    for _ in range(3):
        await world.step()
    world.destroy("web-0")
    rebuilt = world.create("web-0", "a")
    rebuilt.name = "rebuilt"  # in the cloud, so that no other clause keeps the Node
    world.metadata_lags_until = world.minute + 4
    for _ in range(3):
        await world.step()
    rebuilt.is_reachable = False
    for _ in range(40):
        await world.step()
    assert "web-0" in world.nodes
