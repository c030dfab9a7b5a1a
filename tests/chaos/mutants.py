"""Processes of the services with one defect each. The observer must find every one of them."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from libs.testbed.patched_process import PATCHES
from tests.chaos.cluster import Mode
from tests.chaos.invariants import END_STATE, NO_CREDENTIAL
from tests.chaos.schedule import Occurrence, Schedule

DEFECT: Final = "TALOS_CCM_CHAOS_DEFECT"  # the name of a mutant
INSTALL_DEFECT: Final = "tests.chaos.defects:install"  # the patch of a process


class Mutant(msgspec.Struct, frozen=True):
    """Services with the defect of that name in tests/chaos/defects.py, and the invariant that it violates."""

    name: str
    invariant: str
    occurrences: tuple[Occurrence, ...] = ()  # most defects need no fault
    mode: Mode = "all-in-one"

    def plan(self, seed: int) -> Schedule:
        """The schedule of its run; the number says that it is none of the random ones."""
        return Schedule(seed=seed, number=0, mode=self.mode, occurrences=self.occurrences, mutant=self.name)


MUTANTS: Final[Sequence[Mutant]] = (
    Mutant("labeler-removes-the-taint-first", "addresses before taint removal"),
    Mutant(
        "labeler-trusts-an-empty-list-of-addresses",
        "addresses never shrink",
        (Occurrence("machine-without-addresses", 6.0, 12.0),),
    ),
    Mutant("csr-ignores-failed-checks", "only legitimate requests are approved"),
    Mutant(
        "csr-denies-what-must-wait",
        "only legitimate requests are approved",
        (Occurrence("talos-link-cut", 0.0, 6.0),),  # requests wait meanwhile
    ),
    Mutant("ipam-writes-wider-blocks-than-it-has-claimed", "pod CIDRs are disjoint"),
    Mutant("lifecycle-deletes-silent-nodes", "no deletion without proof"),
    Mutant("lifecycle-deletes-without-its-lease", "no write without the Lease", mode="separate"),
    Mutant("labeler-removes-labels-of-others", "operator's keys stay"),
    Mutant("labeler-fetches-each-node-again-and-again", "no request storm"),
    Mutant(
        "metadata-logs-its-first-talosconfig",
        NO_CREDENTIAL,
        (Occurrence("talos-certificates-rotated", 3.0, 6.0),),  # no file has it at the end
    ),
    Mutant("labeler-keeps-the-first-rules", END_STATE),
)


@contextlib.contextmanager
def run_mutated(name: str) -> Iterator[None]:
    """During the block, every process of the services that starts has the defect of that mutant."""
    environment = {DEFECT: name, PATCHES: INSTALL_DEFECT}
    os.environ.update(environment)
    try:
        yield
    finally:
        for variable in environment:
            del os.environ[variable]
