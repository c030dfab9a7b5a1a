"""A process with a service that behaves as its flags say; test_process starts it with `python -m`."""

import asyncio
import sys
from typing import Annotated, Literal

import msgspec

from libs.common.contract.services import LABELER, METADATA, ServiceSpec
from libs.common.service.run_process import run_process
from libs.common.service.service import Dependencies, ServiceDefinition, ServiceEnded
from libs.common.settings.flags import Flag
from libs.common.settings.read_settings import SettingsError


class ProbeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the service behaves."""

    how: Annotated[
        Literal["waits", "fails", "ends", "returns", "misconfigured", "clings", "tells"],
        Flag("how", "What run() does.", "Probe"),
    ] = "waits"
    unready: Annotated[str, Flag("unready", "What problems() says.", "Probe")] = ""


class Probe:
    """Does what its settings say."""

    def __init__(self, parts: Dependencies, settings: ProbeSettings, wiring: ServiceSpec) -> None:
        self.spec = wiring
        self._settings = settings
        self._has_kubernetes = parts.kube is not None

    async def run(self) -> None:
        assert self._has_kubernetes is bool(self.spec.policy_rules)
        match self._settings.how:
            case "fails":
                raise RuntimeError("the flux is not compensated")
            case "ends":
                raise ServiceEnded("the Lease was lost to node-2")
            case "returns":
                return
            case "misconfigured":
                raise SettingsError("--how=misconfigured cannot work")
            case "clings":
                await _cling()
            case "tells":
                print("modules:", *sorted(sys.modules), flush=True)  # noqa: T201 - the test reads it
        await asyncio.Event().wait()

    def problems(self) -> tuple[str, ...]:
        return (self._settings.unready,) if self._settings.unready else ()


async def _cling() -> None:
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            print("clinging", flush=True)  # noqa: T201 - the test waits for it


METADATA_RUN = ServiceDefinition(
    spec=METADATA, settings=ProbeSettings, build=lambda parts, settings: Probe(parts, settings, METADATA)
)
LABELER_RUN = ServiceDefinition(
    spec=LABELER, settings=ProbeSettings, build=lambda parts, settings: Probe(parts, settings, LABELER)
)

if __name__ == "__main__":
    chosen = {"metadata": [METADATA_RUN], "labeler": [LABELER_RUN], "both": [METADATA_RUN, LABELER_RUN]}
    sys.exit(run_process(*chosen[sys.argv.pop(1)], program="probe"))
