"""Workloads, schedules and faults follow from their seed; mutants exist; a sitting leaves its results."""

import copy
import os
import subprocess
import sys
from collections import Counter
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner

from libs.common.contract.services import LABELER
from libs.testbed.admission_webhook import AdmissionWebhook
from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.pki import CertificateAuthority
from libs.testbed.service_permissions import RBAC, get_user_name
from libs.testbed.service_start import ROOT
from tests.chaos import run
from tests.chaos.__main__ import main
from tests.chaos.cluster import MODES, ChaosCluster
from tests.chaos.expectation import Undisturbed
from tests.chaos.fault import Fault, FaultFailed, FaultSite, hold_fault
from tests.chaos.faults import FAULTS, get_fault, list_faults
from tests.chaos.invariants import END_STATE, INVARIANTS, NO_CREDENTIAL, Violation
from tests.chaos.mutants import DEFECT, MUTANTS
from tests.chaos.results import Results, RunRecord
from tests.chaos.schedule import Occurrence, Schedule, plan_pair
from tests.chaos.workload import (
    LAST_NODE,
    NODES,
    STEADY,
    plan_workload,
)

SEEDS = range(30)
LONGEST_SECONDS = 36.0  # until the last heal: a run lasts 90 s at most, and a recovery 60 s
NO_SITE = cast("FaultSite", None)  # the faults of this file act on nothing
# kube-apiserver rejects every change of podCIDRs, so no defect of the services can cause one.
PREVENTED = {"pod CIDRs never change"}


@pytest.mark.parametrize("seed", SEEDS)
def test_each_workload_has_every_act_and_about_twenty_nodes(seed: int):
    workload = plan_workload(seed)
    acts = Counter(step.act for steps in workload.steps.values() for step in steps)
    assert len(workload.steps) == NODES
    assert acts["forge-requests"] == 4
    assert acts["move-address"] == 3
    assert acts["be-replaced"] == acts["go-silent"] == acts["come-back"] == 1
    assert acts["leave"] == 4
    assert acts["join"] == NODES + 2
    assert workload.joins == acts["join"] + 2
    assert len(workload.moving) == 3
    assert workload.machines.keys() == {*workload.steps, LAST_NODE}
    for name in STEADY:  # the machines of the faults only join and stay
        assert [step.act for step in workload.steps[name]] == ["join", "request-certificate"]


def test_a_pair_has_two_targets_and_leaves_time_for_its_recovery():
    for number in range(1, 200):
        schedule = plan_pair(7, number)
        assert schedule == plan_pair(7, number)
        first, second = (get_fault(each.fault) for each in schedule.occurrences)
        assert first.target != second.target, schedule
        assert {first.name, second.name} <= {fault.name for fault in list_faults(schedule.mode)}, schedule
        for each in schedule.occurrences:
            assert 0 <= each.at <= each.until <= LONGEST_SECONDS, schedule
            assert each.fault in str(schedule)


def test_pairs_alternate_between_the_modes_and_reach_every_fault():
    schedules = [plan_pair(7, number) for number in range(1, 400)]
    assert Counter(schedule.mode for schedule in schedules[:12]) == dict.fromkeys(MODES, 4)
    assert {each.fault for s in schedules for each in s.occurrences} == {fault.name for fault in FAULTS}


async def fail(_: FaultSite) -> None:
    raise OSError("the server is down")


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Fault("one", "", fail), "one: inject failed.*server is down"),
        (Fault("one", "", lambda _: None, fail), "one: heal failed.*server is down"),
    ],
    ids=["inject", "heal"],
)
async def test_a_fault_that_cannot_be_injected_or_healed_fails_with_its_reason(fault: Fault, message: str):
    with pytest.raises(FaultFailed, match=message):
        await hold_fault(NO_SITE, fault, 0.0)


def test_the_defect_of_each_mutant_finds_what_it_patches():
    # One process for all: it imports all services, which costs a second of CPU.
    program = (
        "import os, sys\n"
        "from tests.chaos.defects import install\n"
        "for mutant in sys.argv[2:]:\n"
        "    os.environ[sys.argv[1]] = mutant\n"
        "    install()\n"
    )
    command = [sys.executable, "-c", program, DEFECT, *(mutant.name for mutant in MUTANTS)]
    subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True, timeout=HANG_SECONDS)


def test_every_invariant_has_a_mutant():
    assert {mutant.invariant for mutant in MUTANTS} == {*INVARIANTS, END_STATE, NO_CREDENTIAL} - PREVENTED
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 10


# ---- faults whose state is in etcd


ROLE = f"/apis/{RBAC}/v1/clusterroles/{get_user_name(LABELER)}"
RULES = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["patch"]}]


class EtcdInMemory:
    """Objects by path, as administrators write them; a backup has all of them."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {ROLE: {"rules": RULES}}
        self._backup: dict[str, Any] = {}

    async def send(self, method: str, path: str, *, also: int = 200, body: Any = None) -> Any:
        """Answer as KubeletFleet.send does, where each request is accepted or has the status `also`."""
        if method == "POST":
            self.objects[f"{path}/{body['metadata']['name']}"] = body
        elif method == "PUT":
            self.objects[path] = body
        elif method == "DELETE":
            self.objects.pop(path, None)
        return self.objects.get(path)

    async def back_up_etcd(self, _: Path) -> None:
        self._backup = copy.deepcopy(self.objects)

    async def restore_etcd(self, _: Path) -> None:
        self.objects = copy.deepcopy(self._backup)


async def do_nothing() -> None:
    """There are no tokens, Nodes or requests."""


@pytest.mark.parametrize("name", ["webhook-hangs", "webhook-denies", "right-to-patch-nodes-revoked"])
async def test_a_fault_that_the_backup_contains_is_over_after_the_restore(name: str, tmp_path: Path):
    etcd = EtcdInMemory()
    initially = copy.deepcopy(etcd.objects)
    webhook = AdmissionWebhook("chaos", CertificateAuthority.make())
    cluster = SimpleNamespace(
        run_dir=tmp_path, control_plane=etcd, kubelets=etcd, webhook=webhook, rotate_tokens=do_nothing
    )
    nothing = cast("Any", None)  # these faults act on no machine
    site = FaultSite(cast("ChaosCluster", cluster), nothing, nothing, do_nothing, healed=[])
    fault, restored = get_fault(name), get_fault("etcd-restored")
    await cast("Any", fault.inject(site))
    await cast("Any", restored.inject(site))
    assert etcd.objects != initially
    await hold_fault(site, fault, 0.0)
    assert etcd.objects == initially
    await cast("Any", restored.heal(site))
    assert etcd.objects == initially


# ---- sittings


class NotStarting(AbstractAsyncContextManager[ChaosCluster]):
    async def __aenter__(self) -> ChaosCluster:
        inner = ExceptionGroup("inner", [TimeoutError("nats-2 is not healthy after 30 s")])
        raise ExceptionGroup("outer", [inner])

    async def __aexit__(self, *_: object) -> None:
        raise AssertionError("never entered")


def test_a_cluster_that_does_not_start_is_tried_twice_and_reported_and_the_exit_status_is_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(run, "start_cluster", lambda run_dir, mode: NotStarting())
    ended = CliRunner().invoke(main, ["--runs", "3", "--seed", "1", "--logs", str(tmp_path)])
    assert ended.exit_code == 1
    reason = "NOT RUN: the cluster did not start: nats-2 is not healthy after 30 s"
    assert ended.output.count(reason) == 2 * len(MODES)
    assert len(list(tmp_path.glob("*-not-started-*"))) == 2 * len(MODES)
    assert all(mode in ended.output.partition("not run: ")[2] for mode in MODES)
    assert "--seed 1 --resume" in ended.output


LEFT = Undisturbed(nodes={}, first_addresses={"web-1": (("InternalIP", "10.0.0.1"),)}, requests_per_node=9.5)
VIOLATION = Violation("pod CIDRs are disjoint", "web-1", "shares a block")


def a_run(number: int, *faults: tuple[str, float], **fields: object) -> RunRecord:
    occurrences = tuple(Occurrence(name, 2.0, until) for name, until in faults)
    schedule = Schedule(seed=7, number=number, mode="separate", occurrences=occurrences)
    values = {"seconds": 30.0, "requests_per_node": 9.0, "violations": ()} | fields
    return RunRecord(schedule=schedule, recovery_seconds=1.5, **values)  # type: ignore[arg-type]


def test_what_was_added_is_there_after_a_restart(tmp_path: Path):
    results = Results(tmp_path / "results.jsonl")
    undisturbed = a_run(0, left=LEFT)
    run = a_run(1, ("nats-killed", 5.0), violations=(VIOLATION,))
    results.add(undisturbed)
    results.add(run)
    again = Results(results.file)
    assert again.records == [undisturbed, run]
    assert again.find_undisturbed(7, "separate") == LEFT
    assert again.find_undisturbed(7, "all-in-one") is None
    assert again.has_run(run.schedule)
    assert not again.has_run(plan_pair(7, 1))
