"""Faults of our processes: killed, or paused longer than their Lease and resumed."""

from collections.abc import Iterator, Sequence
from typing import Final

from libs.common.contract.services import SERVICES
from tests.chaos.cluster import SEPARATE_MODES, Mode
from tests.chaos.fault import Fault, FaultSite

_LONGER_THAN_THE_LEASE: Final = (17.0, 19.0)  # it lasts 15 s


def _list_process_faults() -> Iterator[Fault]:
    for spec in SERVICES:
        yield from _make_faults(spec.service, SEPARATE_MODES)
    yield from _make_faults("all-in-one", ("all-in-one",))


def _make_faults(process: str, modes: tuple[Mode, ...]) -> Iterator[Fault]:
    async def kill(site: FaultSite) -> None:
        await site.cluster.services.kill(process)

    async def restart(site: FaultSite) -> None:
        site.cluster.services.restart(process)

    async def pause(site: FaultSite) -> None:
        site.cluster.services.children[process].pause()

    async def resume(site: FaultSite) -> None:
        site.cluster.services.children[process].resume()

    target = f"process-{process}"
    yield Fault(name=f"{process}-killed", target=target, inject=kill, heal=restart, modes=modes)
    yield Fault(
        name=f"{process}-paused",
        target=target,
        inject=pause,
        heal=resume,
        hold_seconds=_LONGER_THAN_THE_LEASE,
        modes=modes,
    )


PROCESS_FAULTS: Final[Sequence[Fault]] = tuple(_list_process_faults())
