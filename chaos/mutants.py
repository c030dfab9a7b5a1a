"""Copies of the services with one defect each. The observer must find every one of them.

A mutant changes the text of a copied tree. The services themselves contain no switch.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from chaos.cluster import Mode, list_processes
from chaos.invariants import END_STATE, INVARIANTS, NO_CREDENTIAL
from chaos.schedule import Occurrence, Schedule
from libs.testbed.older_tree import PROCESSES, TREE
from libs.testbed.service_start import ROOT

_FOLDERS: Final = ("libs", "services")


class Change(msgspec.Struct, frozen=True):
    """A text that occurs once in a file of the tree, and what replaces it."""

    file: str
    old: str
    new: str


class Mutant(msgspec.Struct, frozen=True, kw_only=True):
    """A defect, and the invariant that it violates."""

    name: str
    invariant: str
    changes: tuple[Change, ...]
    mode: Mode = "all-in-one"
    occurrences: tuple[Occurrence, ...] = ()  # most defects need no fault

    @property
    def schedule(self) -> Schedule:
        """The schedule of its run; the number says that it is none of the random ones."""
        return Schedule(seed=0, number=0, mode=self.mode, occurrences=self.occurrences)


class MutantOutdated(ValueError):
    """A text of the mutant does not occur exactly once: the code has changed."""


_DELETES_SILENT: Final = Change(
    "services/lifecycle/decide.py",
    "    if assessment.missing:\n        return Keep(",
    "    if (assess_node(case.node, now, min_not_ready=policy.min_not_ready) + of_replica).missing:\n"
    "        return Keep(",
)

MUTANTS: Final[Sequence[Mutant]] = (
    Mutant(
        name="labeler-removes-the-taint-first",
        invariant="addresses before taint removal",
        changes=(
            Change(
                "services/labeler/node_writer.py",
                "        if not status:\n",
                "        if not status or not node.is_initialized:\n",
            ),
        ),
    ),
    Mutant(
        name="labeler-trusts-an-empty-list-of-addresses",
        invariant="addresses never shrink",
        changes=(
            Change(
                "services/labeler/plan/addresses.py",
                "(is_unevaluated or lacks_node_ips(ips, facts)) else",
                "is_unevaluated else",
            ),
        ),
        occurrences=(Occurrence("machine-without-addresses", 6.0, 12.0),),
    ),
    Mutant(
        name="csr-ignores-failed-checks",
        invariant="only legitimate requests are approved",
        changes=(
            Change(
                "services/csr/decide.py", "    if failed is not None:\n", "    if failed is None and False:\n"
            ),
            Change("services/csr/decide.py", "    if open_ones:\n", "    if open_ones and not checks:\n"),
        ),
    ),
    Mutant(
        name="csr-denies-what-must-wait",
        invariant="only legitimate requests are approved",
        changes=(
            Change(
                "services/csr/decide.py",
                "        return _make_wait(open_ones, enriched.request)\n",
                "        return Deny(reason=_DENIED_REASON, message='', check=open_ones[0].name)\n",
            ),
        ),
        occurrences=(Occurrence("talos-link-cut", 0.0, 6.0),),  # requests wait meanwhile
    ),
    Mutant(
        name="ipam-writes-wider-blocks-than-it-has-claimed",
        invariant="pod CIDRs are disjoint",
        changes=(
            Change(
                "services/ipam/allocator.py",
                "NodeChanges(pod_cidrs=assignment.pod_cidrs, ",
                "NodeChanges(pod_cidrs=tuple(str(__import__('ipaddress').ip_network(cidr).supernet(2)) "
                "for cidr in assignment.pod_cidrs), ",
            ),
        ),
    ),
    Mutant(
        name="lifecycle-deletes-silent-nodes",
        invariant="no deletion without proof",
        changes=(_DELETES_SILENT,),
    ),
    Mutant(
        name="lifecycle-deletes-without-its-lease",
        invariant="no write without the Lease",
        mode="separate",
        changes=(
            _DELETES_SILENT,
            Change(
                "services/lifecycle/leader_elector.py",
                "        if self.lock is not None and not self.lock.is_leading:\n            return None\n"
                "        return self._leading_since\n",
                # Only the standby deletes: the leader could otherwise delete each Node first.
                "        if self.lock is not None and self.lock.is_leading:\n            return None\n"
                "        return self.clock() - 60.0\n",
            ),
            Change(
                "services/lifecycle/deletion_budget.py",
                "            if self.holder and lease.holder != self.holder:\n",
                "            if self.holder and not lease:\n",
            ),
        ),
    ),
    Mutant(
        name="labeler-removes-labels-of-others",
        invariant="operator's keys stay",
        changes=(
            Change(
                "services/labeler/plan/labels.py",
                "NodeChanges(labels=found.changes)",
                "NodeChanges(labels=found.changes | {key: None for key in node.labels.keys() - desired.keys()"
                " if 'kubernetes.io' not in key})",
            ),
        ),
    ),
    Mutant(
        name="labeler-fetches-each-node-again-and-again",
        invariant="no request storm",
        changes=(
            Change(
                "services/labeler/node_writer.py",
                "        plan = planner.plan(node, NO_REJECTION)\n        if self._observe_only:\n",
                "        for _ in range(20):\n            await self.get(node.name)\n"
                "        plan = planner.plan(node, NO_REJECTION)\n        if self._observe_only:\n",
            ),
        ),
    ),
    Mutant(
        name="metadata-logs-its-first-talosconfig",
        invariant=NO_CREDENTIAL,
        changes=(
            Change(
                "libs/talos/credentials.py",
                "            text = path.read_bytes()\n",
                "            text = path.read_bytes()\n"
                "            if globals().setdefault('_first', text) is text:\n"
                "                os.write(2, text)\n",
            ),
        ),
        occurrences=(Occurrence("talos-certificates-rotated", 3.0, 6.0),),  # no file has it at the end
    ),
    Mutant(
        name="labeler-keeps-the-first-rules",
        invariant=END_STATE,
        changes=(
            Change(
                "services/labeler/config_reloader.py",
                "        self._current = config\n        rules =",
                "        rules =",
            ),
        ),
    ),
)


def list_covered_invariants() -> set[str]:
    """The invariants with a mutant. kube-apiserver itself prevents that pod CIDRs change."""
    return {mutant.invariant for mutant in MUTANTS} & {*INVARIANTS, END_STATE, NO_CREDENTIAL}


def write_tree(mutant: Mutant, folder: Path, root: Path = ROOT) -> None:
    """Copy the services into `folder` and apply the changes. Raises MutantOutdated."""
    for name in _FOLDERS:
        shutil.copytree(root / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for change in mutant.changes:
        path = folder / change.file
        text = path.read_text()
        if text.count(change.old) != 1:
            raise MutantOutdated(
                f"{mutant.name}: {change.file} has {text.count(change.old)} times: {change.old!r}"
            )
        path.write_text(text.replace(change.old, change.new))


@contextlib.contextmanager
def run_mutated(mutant: Mutant) -> Iterator[None]:
    """During the block, every process of the services runs from a copy with the defect."""
    with tempfile.TemporaryDirectory(prefix="talos-ccm-mutant-") as folder:
        write_tree(mutant, Path(folder))
        names = {TREE: folder, PROCESSES: ",".join(list_processes(mutant.mode))}
        os.environ.update(names)
        try:
            yield
        finally:
            for name in names:
                del os.environ[name]
