"""The simulated cloud: all projects, and the tokens that lead to them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping

import msgspec

from libs.testbed.clouds.api_server import SimApiServer, SimRequest
from libs.testbed.clouds.hcloud.answers import answer_request
from libs.testbed.clouds.hcloud.errors import make_error
from libs.testbed.clouds.hcloud.faults import FAULTS
from libs.testbed.clouds.hcloud.project import RateBucket, SimProject
from libs.testbed.clouds.http_faults import Answer, MakeResponse


class SimHcloud:
    """Implements SimCloud."""

    root = "/v1"
    faults: Mapping[str, MakeResponse] = FAULTS

    def __init__(self, *, now: Callable[[], float] = time.monotonic, rate_limit: int = 3600) -> None:
        """`now` is monotonic, in seconds."""
        self.tokens: dict[str, SimProject] = {}
        self.read_only: set[str] = set()  # tokens that may only read
        self.read_only_code = "forbidden"  # of their writes; "token_readonly" in the past
        self.ignores_filters = False  # lists have everything, whatever name or type was asked for
        self._now = now
        self._unix_zero = time.time() - now()
        self._rate_limit = rate_limit
        self._ids = itertools.count(100_000)

    def add_project(self, *tokens: str) -> SimProject:
        """Create a project with these tokens."""
        bucket = RateBucket(self._rate_limit, self._now)
        project = SimProject(self._ids, bucket, now=self._now, unix_time=self.unix_time)
        self.tokens |= dict.fromkeys(tokens, project)
        return project

    def answer(self, request: SimRequest) -> Answer:
        """Return the answer, with the headers of the rate limit if the token may send the request."""
        project = self.tokens.get(request.token)
        if project is None:
            return make_error(401, "unauthorized", "unable to authenticate")
        if self.ignores_filters:
            pages = {name: value for name, value in request.query.items() if name in {"page", "per_page"}}
            request = msgspec.structs.replace(request, query=pages)
        if request.method != "GET" and request.token in self.read_only:
            return make_error(403, self.read_only_code, "only GET is allowed")
        return answer_request(project, request, unix_time=self.unix_time())

    def unix_time(self) -> float:
        """The time by the cloud's clock."""
        return self._unix_zero + self._now()


SimHcloudServer = SimApiServer[SimHcloud]
