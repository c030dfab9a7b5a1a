"""The simulated OpenStack, with all its services below one address; Keystone is at /identity."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from libs.testbed.clouds.api_server import SimApiServer, SimRequest
from libs.testbed.clouds.http_faults import Answer, MakeResponse
from libs.testbed.clouds.openstack.answers import answer_request
from libs.testbed.clouds.openstack.faults import FAULTS
from libs.testbed.clouds.openstack.state import OpenStackState


class SimOpenStack:
    """Implements SimCloud."""

    root = ""
    faults: Mapping[str, MakeResponse] = FAULTS

    def __init__(
        self,
        *,
        unix_time: Callable[[], float] = time.time,
        regions: Sequence[str] = ("RegionOne",),
        first_id: int = 1,
    ) -> None:
        self.state = OpenStackState(unix_time=unix_time, regions=regions, first_id=first_id)
        self.ignores_filters = False  # lists of servers have every name

    def answer(self, request: SimRequest) -> Answer:
        """Return the answer of the service whose path it is."""
        if self.ignores_filters:
            query = {name: value for name, value in request.query.items() if name != "name"}
            request = msgspec.structs.replace(request, query=query)
        return answer_request(self.state, request)


SimOpenStackServer = SimApiServer[SimOpenStack]
