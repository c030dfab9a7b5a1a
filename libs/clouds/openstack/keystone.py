"""Logs in to Keystone with openstacksdk, which blocks: `log_in` needs a thread of its own.

The library knows the kinds of authentication, the catalogue and the discovery of versions. This module is
imported with the first login only: the library needs 40 MB and two seconds of a core.
"""

from functools import partial
from typing import Any, Final

import keystoneauth1.exceptions as keystone_errors
from keystoneauth1.session import Session
from openstack.config import OpenStackConfig
from openstack.exceptions import SDKException
from requests import Session as Connections

from libs.clouds.http_reader import make_tls_context, needs_tls
from libs.clouds.instances import Outcome, Unanswered
from libs.clouds.openstack.login import Login, LoginOptions, add_balancer_version
from libs.common.requests_session import TlsAdapter

REQUEST_SECONDS: Final = 5.0  # of the library, for each of them

# Nova shows a server that it cannot read since 2.69, the events of actions to everyone since 2.51, the name
# of a flavor since 2.47, and the actions of a deleted server since 2.21. Older clouds are not asked.
_MICROVERSIONS: Final = ((2, 69), (2, 51), (2, 21))
_OUTCOMES: Final[dict[int, Outcome]] = {401: "unauthorized", 403: "forbidden", 429: "rate_limited"}


def log_in(options: LoginOptions, *, user_agent: str) -> Login | Unanswered:
    """Return the login. Reasons name no text of the server, which could repeat the credential."""
    try:
        return _log_in(options, user_agent)
    except keystone_errors.HttpError as error:
        status = error.http_status
        fallback: Outcome = "server_error" if status >= 500 else "malformed"
        return Unanswered(_OUTCOMES.get(status, fallback), f"login: HTTP {status}")
    except (keystone_errors.ConnectionError, OSError) as error:
        return Unanswered("unreachable", f"login: {type(error).__name__}")
    # The last four: the library takes answers apart without looking at their shapes.
    except (
        keystone_errors.ClientException,
        SDKException,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
    ) as error:
        return Unanswered("malformed", f"login: {type(error).__name__}")


def _log_in(options: LoginOptions, user_agent: str) -> Login | Unanswered:
    name, _, version = user_agent.partition("/")
    config = OpenStackConfig(
        load_yaml_config=False,
        load_envvars=False,
        app_name=name,
        app_version=version,
        session_constructor=partial(_make_session, ca_file=options.ca_file),  # type: ignore[arg-type]
    )
    cloud = config.get_one(
        auth=dict(options.auth),
        auth_type=options.auth_type,
        region_name=options.region or None,
        interface=options.interface,
        profile=options.profile or None,
        api_timeout=REQUEST_SECONDS,
    )
    access = cloud.get_auth().get_access(cloud.get_session())  # type: ignore[union-attr]
    if not access.project_id:
        return Unanswered("unauthorized", "login: the credential is for no project")
    listed = access.service_catalog.get_endpoints_data(service_type="compute", interface=options.interface)
    regions = {endpoint.region_name for endpoints in listed.values() for endpoint in endpoints}
    region = options.region or "".join(regions if len(regions) == 1 else ())
    if region not in regions or not region:
        return Unanswered("malformed", "login: the credential file must name a region that the cloud has")
    compute = cloud.get_session_client("compute", region_name=region).get_endpoint_data()
    network = cloud.get_session_client("network", region_name=region).get_endpoint()
    if compute is None or not compute.url or not network:
        return Unanswered("malformed", "login: the catalogue has no Nova or no Neutron in that region")
    supported = [each for each in _MICROVERSIONS if each <= (compute.max_microversion or (0, 0))]
    if not supported:
        return Unanswered("malformed", "login: Nova has no microversion 2.21")
    return Login(
        token=access.auth_token,
        lifetime_seconds=(access.expires - access.issued).total_seconds(),
        project=access.project_id,
        region=region,
        compute=compute.url,
        network=network,
        load_balancer=_find_load_balancer(access, options.interface, region),
        microversion=".".join(map(str, supported[0])),
        ca_file=options.ca_file,
    )


def _find_load_balancer(access: Any, interface: str, region: str) -> str:
    """Return the URL of Octavia, which has one major version."""
    urls: tuple[str, ...] = access.service_catalog.get_urls(
        service_type="load-balancer", interface=interface, region_name=region
    )
    return add_balancer_version(urls[0]) if urls else ""


class _Transport(TlsAdapter):
    """Sends to no server in clear text, except on the loopback."""

    def cert_verify(self, *arguments: Any, **options: Any) -> None:
        """Add no authorities: the context has the same as that of the reader."""

    def send(self, request: Any, *arguments: Any, **options: Any) -> Any:
        needs_tls(request.url)
        return super().send(request, *arguments, **options)


def _make_session(*, ca_file: str, verify: object, cert: object, **arguments: Any) -> Any:
    """Return a session without the proxies of the environment, that follows no redirect."""
    connections = Connections()
    connections.trust_env = False
    connections.mount("http://", _Transport())
    connections.mount("https://", _Transport(partial(make_tls_context, ca_file)))
    return Session(**arguments, session=connections, redirect=False)
