"""Random schedules of what happens to Services, Nodes, processes and the cloud, and what then holds."""

import asyncio
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from libs.common.contract.kube_service import BALANCER_ANNOTATION, KubeService
from libs.testbed.sim_apiserver.faults import ConflictFault, EmptyClose, TooManyRequestsFault
from services.cloud.core.balancers.balancer_record import read_balancer_record
from tests.clocks import run_virtually
from tests.model.clouds.balancer_cluster import ACCOUNT, RandomCluster, Scale

IDLE_MINUTES: Final = 20
_KUBE_FAULTS: Final = (ConflictFault(), TooManyRequestsFault(), EmptyClose())
_KUBE_REQUESTS: Final = (
    ("get", "services"),
    ("patch", "services"),
    ("patch", "services/status"),
    ("create", "events"),
    ("update", "leases"),
)


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a schedule found."""

    seed: int
    wrong: list[str]
    counts: dict[str, int]
    idle_listings: int  # in the idle minutes
    idle_others: int
    node_requests: int  # the most that one balancer needs for a new Node
    longest_double_seconds: float
    story: list[str] = []


def run_name(world: RandomCluster) -> str:
    return f"web-{world.random.randrange(world.scale.services)}"


def _pick(world: RandomCluster) -> KubeService | None:
    services = world.list_services()
    return services[world.random.choice(sorted(services))] if services else None


async def create(world: RandomCluster) -> None:
    await world.create_service(run_name(world), world.random.randrange(world.scale.groups))


async def prepare(world: RandomCluster) -> None:
    """A Service names a load balancer that an operator has made."""
    name = f"prepared-{len(world.prepared)}"
    await world.create_service(name, world.random.randrange(world.scale.groups), is_prepared=True)


async def delete(world: RandomCluster) -> None:
    if service := _pick(world):
        await world.write("DELETE", service.name)


async def recreate(world: RandomCluster) -> None:
    """Another Service of the same name, as soon as the former is gone."""
    if service := _pick(world):
        await world.write("DELETE", service.name)
        await create(world)


async def change_ports(world: RandomCluster) -> None:
    if service := _pick(world):
        ports = [
            {"name": f"port-{number}", "port": number, "nodePort": 32700 + world.random.randrange(60)}
            for number in world.random.sample((80, 443, 8080), world.random.randint(1, 2))
        ]
        await world.patch_service(service.name, spec={"ports": ports})


async def change_annotation(world: RandomCluster) -> None:
    if service := _pick(world):
        annotation = dict([world.random.choice(world.list_changes())])
        await world.patch_service(service.name, metadata={"annotations": annotation})


async def change_ranges(world: RandomCluster) -> None:
    """Ranges that Hetzner cannot enforce, and none."""
    if service := _pick(world):
        ranges = world.random.choice((["10.0.0.0/8"], None, None))
        await world.patch_service(service.name, spec={"loadBalancerSourceRanges": ranges})


async def change_type(world: RandomCluster) -> None:
    """No load balancer any more, or again."""
    if service := _pick(world):
        world.note_owner(service)
        is_one = service.spec.type == "LoadBalancer"
        spec = {"type": "ClusterIP", "loadBalancerClass": None, "loadBalancerSourceRanges": None}
        again = {
            "type": "LoadBalancer",
            "loadBalancerClass": ACCOUNT.load_balancer_class,
            "ports": [{"name": "http", "port": 80, "nodePort": 32700 + world.random.randrange(60)}],
        }
        await world.patch_service(service.name, spec=spec if is_one else again)
        world.note_owner(service)


async def forge_record(world: RandomCluster) -> None:
    """The record of a Service names a load balancer of others, or is gone; only once there is an id."""
    service = _pick(world)
    record = None if service is None else read_balancer_record(service, world.now())
    if service is None or record is None or not record.id:
        return
    world.note_owner(service)
    anchor = msgspec.json.encode(world.anchor).decode()
    foreign = world.random.choice(sorted(world.foreign))
    text = world.random.choice((None, f'{{"account":"prod","anchor":{anchor},"id":"{foreign}"}}'))
    await world.patch_service(service.name, metadata={"annotations": {BALANCER_ANNOTATION: text}})
    if text is not None:  # until an operator removes it, which the Service asks for
        await asyncio.sleep(world.random.uniform(10, 100))
        world.note_owner(service)
        await world.patch_service(service.name, metadata={"annotations": {BALANCER_ANNOTATION: None}})


async def join(world: RandomCluster) -> None:
    name = f"node-{world.random.randrange(world.scale.nodes)}"
    if name not in world.nodes:
        world.join(name, world.random.randrange(world.scale.groups))


async def leave(world: RandomCluster) -> None:
    if world.nodes:
        world.leave(world.random.choice(sorted(world.nodes)))


async def exclude(world: RandomCluster) -> None:
    if world.nodes:
        world.exclude(world.random.choice(sorted(world.nodes)), is_excluded=world.happens(0.5))


async def crash(world: RandomCluster) -> None:
    if world.processes:
        world.kill(world.random.choice(world.processes), "nothing")


async def restart(world: RandomCluster) -> None:
    if world.processes:
        world.restart(world.random.choice(world.processes))


async def slow_down(world: RandomCluster) -> None:
    world.slow_down()


async def fail_change(world: RandomCluster) -> None:
    world.fail_change()


async def use_up_quota(world: RandomCluster) -> None:
    world.use_up_quota()


async def raise_quota(world: RandomCluster) -> None:
    world.raise_quota()


async def protect(world: RandomCluster) -> None:
    if own := world.list_own():
        world.protect(world.random.choice(own), is_protected=world.happens(0.3))


async def delete_in_console(world: RandomCluster) -> None:
    own = [each for each in world.list_own() if each[world.id_key] not in world.prepared]
    if own:
        world.remove_balancer(world.random.choice(own))


async def change_in_console(world: RandomCluster) -> None:
    if own := world.list_own():
        world.change_balancer(world.random.choice(own))


async def break_kubernetes(world: RandomCluster) -> None:
    verb, resource = world.random.choice(_KUBE_REQUESTS)
    fault = world.random.choice(_KUBE_FAULTS)
    world.counts[f"kubernetes {type(fault).__name__} {verb} {resource}"] += 1
    world.kube.faults.inject(fault, verb=verb, resource=resource, times=world.random.choice((1, 2, 5, 30)))


async def heal_kubernetes(world: RandomCluster) -> None:
    world.kube.faults.clear()


async def duplicate(world: RandomCluster) -> None:
    """A former leader's create takes effect very late: the name is another one by now."""
    service = _pick(world)
    if service is not None and world.list_own(service.uid):
        labels = world.build_labels(service.uid)
        world.counts["late doubles"] += 1
        world.add_balancer(f"late-{world.counts['late doubles']}", labels)


Happening = Callable[[RandomCluster], Awaitable[None]]
CHANGES: Final[tuple[Happening, ...]] = (
    *(create,) * 5,
    prepare,
    *(delete,) * 2,
    recreate,
    change_ports,
    change_annotation,
    change_ranges,
    change_type,
    forge_record,
    *(join,) * 4,
    *(leave,) * 2,
    exclude,
)
FAULTS: Final[tuple[Happening, ...]] = (
    crash,
    restart,
    slow_down,
    fail_change,
    use_up_quota,
    raise_quota,
    protect,
    delete_in_console,
    change_in_console,
    break_kubernetes,
    heal_kubernetes,
)


async def _happen(world: RandomCluster, happening: Happening) -> None:
    world.tell(happening.__name__)
    world.counts[happening.__name__] += 1
    await happening(world)


async def _run_round(world: RandomCluster) -> None:
    world.fault_rate, world.kill_rate = world.scale.fault_rate, world.scale.kill_rate
    until = world.clock() + 900
    while world.clock() < until:
        await asyncio.sleep(world.random.expovariate(1 / world.scale.pause_seconds))
        await _happen(world, world.random.choice((*CHANGES, *FAULTS)))
    stop_faults(world)
    world.tell("calm")
    until = world.clock() + 480
    while world.clock() < until:
        await asyncio.sleep(world.random.expovariate(1 / 30))
        await _happen(world, world.random.choice((join, leave, change_ports)))
    await duplicate(world)
    await asyncio.sleep(120)


def stop_faults(world: RandomCluster) -> None:
    """From now on every request succeeds."""
    world.fault_rate = world.kill_rate = 0.0
    world.calm_since = world.clock()
    world.cloud.faults.clear()
    world.kube.faults.clear()
    world.stop_faults()


async def run_schedule(
    seed: int, scale: Scale, folder: Path, cluster: type[RandomCluster] = RandomCluster
) -> Result:
    """Run one schedule to its end, at which nothing of ours is left in the cloud."""
    async with cluster.open(seed, folder, scale) as world:
        for number in range(scale.nodes):
            world.join(f"node-{number}", number % scale.groups)
        for number in range(scale.services):
            await world.create_service(f"web-{number}", number % scale.groups)
        for _ in range(scale.rounds):
            await _run_round(world)
        await _expect(world, "settled", lambda: not world.list_differences(), 30, world.list_differences)
        idle = await _count_idle_requests(world)
        if idle[1]:
            world.blame(f"{idle[1]} requests beside listings in idle minutes")
        node_requests = await _count_requests_of_a_node(world)
        await _end_all(world)
        world.look()
        return Result(
            seed=seed,
            wrong=world.wrong,
            counts=dict(sorted(world.counts.items())),
            idle_listings=idle[0],
            idle_others=idle[1],
            node_requests=node_requests,
            longest_double_seconds=world.longest_double,
            story=world.story,
        )


async def _expect(
    world: RandomCluster,
    what: str,
    is_done: Callable[[], bool],
    minutes: float,
    explain: Callable[[], object],
) -> None:
    began = world.clock()
    if not await world.wait_until(is_done, minutes):
        world.blame(f"not {what} after {minutes} minutes: {explain()}")
    world.tell(f"{what} after {world.clock() - began:.0f} s")


async def _count_idle_requests(world: RandomCluster) -> tuple[int, int]:
    """Listings and other requests while nothing changes."""
    await asyncio.sleep(120)
    before = len(world.cloud.requests)
    await asyncio.sleep(IDLE_MINUTES * 60)
    requests = world.cloud.requests[before:]
    listings = [each for each in requests if world.is_listing(each)]
    return sum(each.query.get("page", "1") == "1" for each in listings), len(requests) - len(listings)


async def _count_requests_of_a_node(world: RandomCluster) -> int:
    """The most requests of one balancer, without its action, after a Node has joined."""
    before = len(world.cloud.requests)
    world.join("node-new", 0)
    await _expect(world, "targets", lambda: not world.list_differences(), 5, world.list_differences)
    found = Counter(
        balancer[world.id_key]
        for each in world.cloud.requests[before:]
        if each.method == "GET" and not world.is_listing(each)
        for balancer in [world.find_target(each)[0]]
        if balancer is not None
    )
    return max(found.values(), default=0)


async def _end_all(world: RandomCluster) -> None:
    for service in world.list_services().values():
        await world.write("DELETE", service.name)
        if world.needs_operator(service):
            await world.patch_service(service.name, metadata={"finalizers": None})

    def is_over() -> bool:
        return not world.list_own() and not world.list_services()

    def explain() -> Any:
        return sorted(world.list_services()), [each[world.id_key] for each in world.list_own()]

    await _expect(world, "gone", is_over, 30, explain)
    for number, each in world.balancers.items():
        is_kept = number in world.prepared or world.is_protected(each)
        if number not in world.foreign and not (is_kept and world.is_empty(each)):
            world.blame(f"load balancer {number} is left: {each}")
    if left := world.list_parts():
        world.blame(f"parts of load balancers are left: {left}")


def run_in_a_folder(seed: int, scale: Scale, cluster: type[RandomCluster] = RandomCluster) -> Result:
    """Run one schedule with files of its own."""
    with tempfile.TemporaryDirectory() as folder:
        return run_virtually(run_schedule(seed, scale, Path(folder), cluster), has_servers=True)
