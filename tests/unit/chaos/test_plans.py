"""Workloads and schedules follow from their seed, and keep what the observer relies on."""

from collections import Counter

import pytest

from tests.chaos.cluster import MODES
from tests.chaos.faults import FAULTS, get_fault, list_faults
from tests.chaos.schedule import plan_pair
from tests.chaos.workload import (
    LAST_NODE,
    NODES,
    STEADY,
    make_impostor,
    make_replacement,
    move_external_address,
    plan_workload,
)

SEEDS = range(30)
LONGEST_SECONDS = 36.0  # until the last heal: a run lasts 90 s at most, and a recovery 60 s


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


@pytest.mark.parametrize("seed", SEEDS)
def test_steps_of_a_node_are_in_order_and_end_before_the_bound_of_a_run(seed: int):
    for steps in plan_workload(seed).steps.values():
        times = [step.at for step in steps]
        assert times == sorted(times)
        assert times[-1] < LONGEST_SECONDS


@pytest.mark.parametrize("seed", SEEDS)
def test_the_machines_of_the_faults_only_join_and_stay(seed: int):
    workload = plan_workload(seed)
    for name in STEADY:
        assert [step.act for step in workload.steps[name]] == ["join", "request-certificate"]


def test_machines_that_are_changed_keep_the_addresses_at_which_they_answer():
    machine = plan_workload(1).machines["node-05"]
    for changed in (move_external_address(machine), make_replacement(machine), make_impostor(machine)):
        assert changed.reachable_at == machine.reachable_at
    assert make_replacement(machine).system_information != machine.system_information
    assert make_impostor(machine).name != machine.name


@pytest.mark.parametrize("number", range(1, 200))
def test_a_pair_has_two_targets_and_leaves_time_for_its_recovery(number: int):
    schedule = plan_pair(7, number)
    assert schedule == plan_pair(7, number)
    first, second = (get_fault(each.fault) for each in schedule.occurrences)
    assert first.target != second.target
    assert {first.name, second.name} <= {fault.name for fault in list_faults(schedule.mode)}
    for each in schedule.occurrences:
        assert 0 <= each.at <= each.until <= LONGEST_SECONDS
        assert each.fault in str(schedule)


def test_pairs_alternate_between_the_modes_and_reach_every_fault():
    schedules = [plan_pair(7, number) for number in range(1, 400)]
    assert Counter(schedule.mode for schedule in schedules[:12]) == dict.fromkeys(MODES, 4)
    assert {each.fault for s in schedules for each in s.occurrences} == {fault.name for fault in FAULTS}


def test_names_of_faults_are_unique_and_only_one_fault_of_answers_occurs_at_a_time():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert {
        fault.target for fault in FAULTS if fault.name.startswith("api-") and "link" not in fault.name
    } == {"api-answers"}
