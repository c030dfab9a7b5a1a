"""Processes of the services with one defect each. The observer must find every one of them."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from libs.testbed.patched_process import PATCHES
from tests.chaos.cluster import Mode
from tests.chaos.invariants import END_STATE, INVARIANTS, NO_CREDENTIAL
from tests.chaos.schedule import Occurrence, Schedule

DEFECT: Final = "TALOS_CCM_CHAOS_DEFECT"  # a function of tests/chaos/defects.py
INSTALL_DEFECT: Final = "tests.chaos.defects:install"  # the patch of a process


class Mutant(msgspec.Struct, frozen=True, kw_only=True):
    """A defect, and the invariant that it violates."""

    name: str
    invariant: str
    defect: str  # a function of tests/chaos/defects.py
    mode: Mode = "all-in-one"
    occurrences: tuple[Occurrence, ...] = ()  # most defects need no fault

    @property
    def schedule(self) -> Schedule:
        """The schedule of its run; the number says that it is none of the random ones."""
        return Schedule(seed=0, number=0, mode=self.mode, occurrences=self.occurrences)


MUTANTS: Final[Sequence[Mutant]] = (
    Mutant(
        name="labeler-removes-the-taint-first",
        invariant="addresses before taint removal",
        defect="remove_the_taint_first",
    ),
    Mutant(
        name="labeler-trusts-an-empty-list-of-addresses",
        invariant="addresses never shrink",
        defect="trust_an_empty_list_of_addresses",
        occurrences=(Occurrence("machine-without-addresses", 6.0, 12.0),),
    ),
    Mutant(
        name="csr-ignores-failed-checks",
        invariant="only legitimate requests are approved",
        defect="ignore_failed_checks",
    ),
    Mutant(
        name="csr-denies-what-must-wait",
        invariant="only legitimate requests are approved",
        defect="deny_what_must_wait",
        occurrences=(Occurrence("talos-link-cut", 0.0, 6.0),),  # requests wait meanwhile
    ),
    Mutant(
        name="ipam-writes-wider-blocks-than-it-has-claimed",
        invariant="pod CIDRs are disjoint",
        defect="write_wider_blocks_than_claimed",
    ),
    Mutant(
        name="lifecycle-deletes-silent-nodes",
        invariant="no deletion without proof",
        defect="delete_silent_nodes",
    ),
    Mutant(
        name="lifecycle-deletes-without-its-lease",
        invariant="no write without the Lease",
        mode="separate",
        defect="delete_without_the_lease",
    ),
    Mutant(
        name="labeler-removes-labels-of-others",
        invariant="operator's keys stay",
        defect="remove_labels_of_others",
    ),
    Mutant(
        name="labeler-fetches-each-node-again-and-again",
        invariant="no request storm",
        defect="fetch_each_node_again_and_again",
    ),
    Mutant(
        name="metadata-logs-its-first-talosconfig",
        invariant=NO_CREDENTIAL,
        defect="log_the_first_talosconfig",
        occurrences=(Occurrence("talos-certificates-rotated", 3.0, 6.0),),  # no file has it at the end
    ),
    Mutant(name="labeler-keeps-the-first-rules", invariant=END_STATE, defect="keep_the_first_rules"),
)


def list_covered_invariants() -> set[str]:
    """The invariants with a mutant. kube-apiserver itself prevents that pod CIDRs change."""
    return {mutant.invariant for mutant in MUTANTS} & {*INVARIANTS, END_STATE, NO_CREDENTIAL}


@contextlib.contextmanager
def run_mutated(mutant: Mutant) -> Iterator[None]:
    """During the block, every process of the services that starts has the defect."""
    names = {DEFECT: mutant.defect, PATCHES: INSTALL_DEFECT}
    os.environ.update(names)
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]
