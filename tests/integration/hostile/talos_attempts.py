"""What a hostile machine answers over the Talos API."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from libs.common.contract.subjects import NETWORKS
from libs.testbed.machine_fleet import Member, SystemInformation
from tests.bus_actors import wait_until
from tests.integration.hostile.attacked_cluster import VICTIM, VICTIM_IP, VICTIM_UUID
from tests.integration.hostile.attacker import Attacker
from tests.integration.hostile.attempts import Attempt

BLOCKED: Final = "only its own Node stays uninitialized, with a condition that gives the reason"
INITIALIZED: Final = "its own Node is initialized"
LINES: Final = "web\nlevel=error msg=forged\r\x1b[2J\x1b]0;title\x07\u202e\x00end"
CARRY = Callable[[Attacker], Awaitable[None]]


def answers(lies: Callable[[Attacker], dict[str, Any]], reason: str) -> CARRY:
    """The machine has these lies, which block its own Node for that reason."""

    async def carry_out(attacker: Attacker) -> None:
        await attacker.join(machine=lies(attacker))
        await attacker.cluster.wait_until_blocked(attacker.name, reason)

    return carry_out


def is_initialized(lies: Callable[[Attacker], dict[str, Any]]) -> CARRY:
    """The machine has these lies, which do not keep its own Node from its initialization."""

    async def carry_out(attacker: Attacker) -> None:
        await attacker.join(machine=lies(attacker))
        node = await attacker.cluster.wait_until_initialized(attacker.name)
        addresses = {each["address"] for each in node["status"]["addresses"]}
        assert addresses.isdisjoint({VICTIM_IP, VICTIM, "127.0.0.1", "169.254.169.254", "10.96.0.1"})

    return carry_out


def platform(**fields: Any) -> Callable[[Attacker], dict[str, Any]]:
    """These platform metadata."""
    return lambda attacker: {"platform": attacker.platform(**fields)}


def addresses(*some: str) -> Callable[[Attacker], dict[str, Any]]:
    """Its own addresses and these."""
    return lambda attacker: {"addresses": attacker.with_addresses(*some)}


def skips(label: str, lies: Callable[[Attacker], dict[str, Any]]) -> CARRY:
    """The labeler leaves that label out, and reports it."""

    async def carry_out(attacker: Attacker) -> None:
        await attacker.join(machine=lies(attacker))
        node = await attacker.cluster.wait_until_initialized(attacker.name)
        assert label not in node["metadata"]["labels"]
        message = await attacker.cluster.wait_for_event(attacker.name, "LabelSkipped")
        assert message.isprintable()

    return carry_out


async def inject_template(attacker: Attacker) -> None:
    text = "{{ .Zone }}{{ env `HOME` }}"
    await attacker.join(machine={"platform": attacker.platform(tags={"role": text})})
    node = await attacker.cluster.wait_until_initialized(attacker.name)
    assert node["metadata"]["annotations"]["example.com/tag"] == text


async def write_control_characters(attacker: Attacker) -> None:
    """What the machine reports reaches logs, Events and conditions on one line only."""
    await attacker.join(
        machine={"platform": attacker.platform(zone=LINES, hostname=LINES, tags={"role": LINES})}
    )
    await attacker.cluster.wait_until_initialized(attacker.name)
    message = await attacker.cluster.wait_for_event(attacker.name, "LabelSkipped")
    assert message.isprintable()
    for child in attacker.cluster.services.children.values():
        log = child.log.read_text()
        assert "\x1b" not in log
        assert not any(line.startswith("level=error") for line in log.splitlines())


async def report_public_address(attacker: Attacker) -> None:
    """A public address is the machine's own claim: it reaches its own Node, and no certificate."""
    await attacker.join(machine={"addresses": attacker.with_addresses(f"{VICTIM_IP}/32", link="external")})
    await attacker.cluster.wait_until_initialized(attacker.name)
    request = await attacker.request_certificate(ips=[attacker.ip, VICTIM_IP])
    await attacker.still_waits(request, "answers there")


async def copy_provider_id(attacker: Attacker) -> None:
    """A machine of a cloud reports what its cloud says, so a compromised one can report anything."""
    taken = (await attacker.cluster.get_node(VICTIM))["spec"]["providerID"]
    await attacker.join(machine={"platform": attacker.platform(provider_id=taken)})
    await attacker.cluster.wait_until_blocked(attacker.name, "ProviderIDOfAnotherNode")


async def claim_control_plane(attacker: Attacker) -> None:
    """metadata queries a control plane of the talosconfig, never a machine that only says that it is one."""
    lies = {"control_plane": True, "pod_cidrs": ("10.0.0.0/8",), "service_cidrs": ("10.0.0.0/8",)}
    await attacker.join(machine=lies)
    await attacker.cluster.wait_until_initialized(attacker.name)
    message = await attacker.cluster.bus.get_last(NETWORKS)
    assert message is not None
    assert "10.0.0.0/8" not in repr(message.event)


async def forget_member(attacker: Attacker) -> None:
    await attacker.join(machine={"members": (Member(name=attacker.name),)})
    await attacker.cluster.wait_until_initialized(attacker.name)
    assert await attacker.cluster.get_node(VICTIM)


async def announce_shutdown(attacker: Attacker) -> None:
    """The shutdown taint is for its own Node."""
    await attacker.join(machine={"stage": "shutting down"})
    await attacker.cluster.wait_until_initialized(attacker.name)


def behaves(**faults: Any) -> CARRY:
    """The machine hangs or fails; healthy again, it is initialized."""

    async def carry_out(attacker: Attacker) -> None:
        await attacker.cluster.cluster.put_machines(attacker.machine)
        await attacker.cluster.machines.set_faults(attacker.name, **faults)
        await attacker.register()
        kept = attacker.cluster.honest
        await wait_until(lambda: attacker.cluster.honest > kept + 1, "others join meanwhile")
        await attacker.cluster.machines.set_faults(attacker.name)
        await attacker.cluster.wait_until_initialized(attacker.name)

    return carry_out


async def change_without_end(attacker: Attacker) -> None:
    await attacker.join()
    await attacker.cluster.wait_until_initialized(attacker.name)
    for number in range(300):
        lies = attacker.with_addresses(f"10.229.201.{number % 250}/24")
        await attacker.cluster.machines.change_machine(attacker.name, addresses=lies)


def _many(attacker: Attacker) -> dict[str, Any]:
    return {
        "addresses": attacker.with_addresses(*(f"10.180.{n // 250}.{n % 250 + 1}/24" for n in range(10_000)))
    }


WRONG = "WrongMachineAnswers"
INVALID = "TalosAnswerInvalid"
TALOS_ATTEMPTS: tuple[Attempt[Attacker], ...] = (
    Attempt("reports another node's name", BLOCKED, answers(lambda attacker: {"name": VICTIM}, WRONG)),
    Attempt(
        "reports another node's name and systemUUID",
        BLOCKED,
        answers(
            lambda attacker: {"name": VICTIM, "system_information": SystemInformation(uuid=VICTIM_UUID)},
            WRONG,
        ),
    ),
    Attempt("reports no node name", BLOCKED, answers(lambda attacker: {"name": ""}, "TalosResourceMissing")),
    Attempt(
        "reports another node's address",
        INITIALIZED + " without it",
        is_initialized(addresses(f"{VICTIM_IP}/24")),
    ),
    Attempt(
        "reports loopback, link-local and Service addresses",
        INITIALIZED + " without them",
        is_initialized(addresses("127.0.0.1/8", "169.254.169.254/16", "10.96.0.1/32")),
    ),
    Attempt(
        "reports another node's address as its public one",
        "it is on its own Node only; no certificate contains it",
        report_public_address,
    ),
    Attempt("reports 10,000 addresses", BLOCKED, answers(_many, INVALID)),
    Attempt("reports a host name of 1.5 MB", BLOCKED, answers(platform(hostname="h" * 1_500_000), INVALID)),
    Attempt(
        "reports tags of 1 MB",
        BLOCKED,
        answers(platform(tags={f"t{n}": "x" * 1000 for n in range(1000)}), INVALID),
    ),
    Attempt(
        "reports a zone that is no label value",
        "the labeler leaves the label out",
        skips("topology.kubernetes.io/zone", platform(zone="a b/ü")),
    ),
    Attempt(
        "reports an instance type of 300 characters",
        "the labeler leaves the label out",
        skips("node.kubernetes.io/instance-type", platform(instance_type="x" * 300)),
    ),
    Attempt("reports a template as a tag", "the rule's result contains the text as it is", inject_template),
    Attempt(
        "reports line breaks and escape sequences",
        "logs, Events and conditions stay one line each",
        write_control_characters,
    ),
    Attempt(
        "reports another machine's providerID",
        BLOCKED,
        copy_provider_id,
    ),
    Attempt(
        "claims to be a control plane with other networks",
        "metadata queries the endpoints of the talosconfig",
        claim_control_plane,
    ),
    Attempt(
        "reports a discovery without the other machines", "only a control plane's list counts", forget_member
    ),
    Attempt("reports that it shuts down", INITIALIZED, announce_shutdown),
    Attempt(
        "never answers",
        "its own Node waits until the machine answers; no other Node does",
        behaves(hang=True),
    ),
    Attempt(
        "answers after three seconds",
        "its own Node waits until the machine answers; no other Node does",
        behaves(delay_ms=3000),
    ),
    Attempt(
        "denies every query",
        "its own Node waits until the machine answers; no other Node does",
        behaves(permission_denied=True),
    ),
    Attempt(
        "has none of the resources",
        "its own Node waits until the machine answers; no other Node does",
        behaves(not_found=["Nodenames.kubernetes.talos.dev"]),
    ),
    Attempt(
        "changes its addresses 300 times without a pause",
        "metadata queries it no more often than once a second",
        change_without_end,
    ),
)
