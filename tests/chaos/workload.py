"""What nodes, an operator and attackers do during a run: a plan that follows from a seed. Pure."""

import random
from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from libs.common.contract.public_addresses import EXTERNAL_LINK
from libs.testbed.machine_facts import MIXED_FLEET, make_numbered_machine, replace_external_address
from libs.testbed.machine_fleet import Address, SimMachineFacts
from tests.chaos.expectation import OperatorKeys

CONTROL_PLANE: Final = "cp-1"
NODES: Final = 20
RULE_LABEL: Final = "tests.chaos.example.com/revision"
LAST_REVISION: Final = 2
LAST_NODE: Final = "last-1"  # joins when the last fault is healed
STEADY: Final = ("node-01", "node-02", "node-03")  # join first and only stay: faults of machines use these
_EARLY: Final = 8  # nodes that join at the beginning
_JOIN_SECONDS: Final = 12.0
_STAY_SECONDS: Final = (3.0, 7.0)
# Clouds whose Nodes get the external address that Talos reports.
_CLOUDS: Final = ("aws", "hcloud", "gcp", "azure")

Act = Literal[
    "join",
    "leave",
    "move-address",
    "request-certificate",
    "forge-requests",
    "write-operator-keys",
    "wait-until-usable",
    "go-silent",
    "come-back",
    "be-replaced",
]


class Step(msgspec.Struct, frozen=True):
    """One act of a node, not before this second of the run."""

    at: float
    act: Act


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of one run. Steps of one node follow one another; nodes do not wait for each other."""

    seed: int
    machines: Mapping[str, SimMachineFacts]
    steps: Mapping[str, tuple[Step, ...]]
    rule_changes: tuple[float, ...]  # the second of each revision after the first
    operator_keys: Mapping[str, OperatorKeys]
    moving: Mapping[str, frozenset[str]]  # the addresses that a node has before or after its move
    replaced: frozenset[str]

    @property
    def joins(self) -> int:
        """How many Nodes are created, one that returns counted twice; the replacements count too."""
        planned = [step.act for steps in self.steps.values() for step in steps]
        return planned.count("join") + len(self.replaced) + 1  # and LAST_NODE


def plan_workload(seed: int) -> Workload:
    """The plan of that seed."""
    choose = random.Random(f"workload {seed}")
    names = [f"node-{number:02}" for number in range(1, NODES)]
    platforms = [choose.choice(MIXED_FLEET) for _ in names]
    roles = _assign_roles(names, choose)
    for index, name in enumerate(names):
        if roles.get(name) == "moves":
            platforms[index] = choose.choice(_CLOUDS)
    platforms[names.index(STEADY[-1])] = "hcloud"  # a fault hides its addresses: it must have an external one
    machines = {
        name: make_numbered_machine(name, number, platform, "chaos")
        for number, (name, platform) in enumerate(zip(names, platforms, strict=True), 1)
    }
    head = make_numbered_machine(CONTROL_PLANE, 0, "metal", "chaos")
    machines[CONTROL_PLANE] = msgspec.structs.replace(head, control_plane=True)
    machines[LAST_NODE] = make_numbered_machine(LAST_NODE, NODES, "aws", "chaos")
    steps: dict[str, tuple[Step, ...]] = {
        CONTROL_PLANE: (Step(0.0, "join"), Step(0.0, "request-certificate"))
    }
    for index, name in enumerate(names):
        begin = 0.0 if index < _EARLY else round(choose.uniform(0.5, _JOIN_SECONDS), 1)
        steps[name] = _plan_steps(roles.get(name, ""), begin, choose)
    operated = [name for name in names if roles.get(name) in ("operated", "returns")]
    return Workload(
        seed=seed,
        machines=machines,
        steps=steps,
        rule_changes=tuple(sorted(round(choose.uniform(2, 18), 1) for _ in range(LAST_REVISION))),
        operator_keys={name: _make_operator_keys(name) for name in operated},
        moving={name: _list_moving(machines[name]) for name in names if roles.get(name) == "moves"},
        replaced=frozenset(name for name in names if roles.get(name) == "replaced"),
    )


def move_external_address(machine: SimMachineFacts) -> SimMachineFacts:
    """The machine with another external address."""
    addresses = replace_external_address(machine, _moved_address(machine))
    return msgspec.structs.replace(machine, addresses=addresses)


def make_replacement(machine: SimMachineFacts) -> SimMachineFacts:
    """The machine that is installed at the address of that one, under a name of its own."""
    name = f"{machine.name}-next"
    fresh = make_numbered_machine(name, 0, "metal", "chaos")
    own = tuple(each for each in machine.addresses if each.link != EXTERNAL_LINK)
    return msgspec.structs.replace(fresh, reachable_at=machine.reachable_at, addresses=own)


def make_impostor(machine: SimMachineFacts) -> SimMachineFacts:
    """Another cluster's machine that answers at the address of that one for a while."""
    fresh = make_numbered_machine(f"impostor-of-{machine.name}", 0, "metal", "another-cluster")
    extra = Address(address="192.0.2.66/24", local="192.0.2.66")
    own = (*(each for each in machine.addresses if each.link != EXTERNAL_LINK), extra)
    return msgspec.structs.replace(fresh, reachable_at=machine.reachable_at, addresses=own)


def _assign_roles(names: list[str], choose: random.Random) -> dict[str, str]:
    roles = [
        *("attacks", "attacks", "moves", "moves", "moves", "leaves", "leaves", "returns", "returns"),
        *("replaced", "silent", "operated", "operated", "operated"),
    ]
    return dict(zip(choose.sample(names[len(STEADY) :], len(roles)), roles, strict=True))


def _plan_steps(role: str, begin: float, choose: random.Random) -> tuple[Step, ...]:
    later = round(begin + choose.uniform(*_STAY_SECONDS), 1)
    latest = round(later + choose.uniform(1, 4), 1)
    joins = (Step(begin, "join"), Step(begin, "request-certificate"))
    usable = Step(begin, "wait-until-usable")
    match role:
        case "attacks":
            return (Step(begin, "join"), Step(begin, "forge-requests"), Step(later, "forge-requests"))
        case "moves":
            return (*joins, Step(later, "move-address"))
        case "leaves":
            return (*joins, Step(later, "leave"))
        case "returns":
            again = (Step(latest, "join"), Step(latest, "write-operator-keys"))
            return (*joins, Step(later, "leave"), *again, Step(latest, "request-certificate"))
        case "replaced":
            return (*joins, usable, Step(later, "be-replaced"))
        case "silent":
            return (*joins, usable, Step(later, "go-silent"), Step(later + 10, "come-back"))
        case "operated":
            return (*joins, Step(begin, "write-operator-keys"))
    return joins


def _make_operator_keys(name: str) -> OperatorKeys:
    return OperatorKeys(
        labels={
            "operator.example.com/team": f"team of {name}".replace(" ", "-"),
            "topology.example.com/rack": "r 7".replace(" ", ""),
        },
        annotations={"operator.example.com/note": f'{{"about":"{name}", "spaces":  2}}'},
        taints=({"key": "operator.example.com/dedicated", "value": "db", "effect": "NoSchedule"},),
    )


def _moved_address(machine: SimMachineFacts) -> str:
    number = int(machine.name.rpartition("-")[2])
    return f"203.0.113.{number}"


def _list_moving(machine: SimMachineFacts) -> frozenset[str]:
    before = {each.address.partition("/")[0] for each in machine.addresses if each.link == EXTERNAL_LINK}
    return frozenset({*before, _moved_address(machine)})
