"""The contract of simulated machines holds for Talos's own API server, too: it is what they simulate."""

from __future__ import annotations

import pytest

from libs.testbed.talos_front import start_machines
from tests.contract import test_machines_contract as contract

talos, cosi, machine = contract.talos, contract.cosi, contract.machine


@pytest.fixture(scope="module")
def start() -> contract.Start:
    return start_machines


class TestWhatAMachineSays(contract.TestWhatAMachineSays):
    pass


class TestRouting(contract.TestRouting):
    pass


class TestAccess(contract.TestAccess):
    pass


class TestWatching(contract.TestWatching):
    pass


class TestFaults(contract.TestFaults):
    pass


class TestConnections(contract.TestConnections):
    pass
