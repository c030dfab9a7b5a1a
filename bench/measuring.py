"""What a scenario has at hand: where it runs, our services, and nodes that come and go."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from bench.figures import Figures, Run
from bench.fleet import kubelets
from bench.stage import Controlled, Stage, controlled
from bench.wanted import Mode, Scenario, Wanted
from libs.common.service_spec import DEFAULT_SERVICES, ServiceSpec
from libs.testbed.kubelets_in_go import Joins
from libs.testbed.machines import Machine

_SINGLES_PER_SECOND: Final = 5  # as the reference was measured


class Measuring(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a scenario: where, in which mode, and the name that its nodes and files bear."""

    stage: Stage
    wanted: Wanted
    mode: Mode
    number: int
    name: str
    profiles: Path | None = None

    def controlled(
        self,
        *flags: str,
        wirings: Sequence[ServiceSpec] = DEFAULT_SERVICES,
        replicas: Mapping[str, int] | None = None,
        own_flags: Mapping[str, Sequence[str]] | None = None,
    ) -> contextlib.AbstractAsyncContextManager[Controlled]:
        """Our services, started for this run alone."""
        return controlled(
            self.stage,
            self.mode,
            self.name,
            flags=flags,
            wirings=wirings,
            replicas=replicas,
            own_flags=own_flags,
            profiles=self.profiles,
        )

    async def joined(
        self,
        names: list[str],
        *,
        alone: bool,
        one_at_a_time: bool = False,
        certificates: bool = False,
        pod_cidrs: bool = False,
    ) -> Joins:
        """Let kubelets join at the wanted pace; `alone`: nobody takes the taint away, nobody approves."""
        wanted = self.wanted
        return await self.stage.kubelets.join(
            names,
            concurrency=wanted.concurrency,
            per_second=_SINGLES_PER_SECOND if one_at_a_time else wanted.per_second,
            one_at_a_time=one_at_a_time,
            until_untainted=not alone,
            until_served=pod_cidrs,
            certificates=certificates,
            seconds=wanted.patience_seconds,
        )

    def run(self, scenario: Scenario, figures: Figures, problems: list[str]) -> Run:
        """The result."""
        return Run(
            scenario=scenario, mode=self.mode, number=self.number, figures=figures, problems=tuple(problems)
        )


Measure = Callable[[Measuring], Awaitable[Run]]


@contextlib.asynccontextmanager
async def present(
    stage: Stage, machines: list[Machine], *, certificates: int = 0
) -> AsyncIterator[list[str]]:
    """Machines that run, with kubelets that may join, and may ask for so many certificates.

    At the end neither they nor their nodes are left, nor what they asked for.
    """
    await stage.machines.put(*machines)
    await stage.kubelets.load(kubelets(machines), certificates=certificates)
    names = [machine.name for machine in machines]
    joined = False
    try:
        yield names
        joined = True
    finally:
        if joined:  # after a failure or Ctrl-C the whole control plane goes away
            await stage.kubelets.delete(names)
            await stage.machines.delete(*(machine.id for machine in machines))
