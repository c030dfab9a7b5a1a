"""Serves Octavia from its package, with a database in the current folder: `octavia PORT NEUTRON_PORT`.

While the file `hold` is there, each change stays PENDING. While the file `fail` is there, each change ends
with ERROR.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import openstack
from keystoneauth1.noauth import NoAuth
from keystoneauth1.session import Session
from octavia.api import app
from octavia.api.drivers import driver_factory
from octavia.api.drivers.noop_driver.driver import NoopProviderDriver
from octavia.common import clients, constants
from octavia.common import utils as octavia_utils
from octavia.db import api as database
from octavia.db import base_models, models
from oslo_config import cfg

from libs.testbed.clouds.openstack_services.wsgi_server import Application, serve

PROVIDER: Final = "amphora"  # the name of the usual one
HOLD: Final = "hold"
FAIL: Final = "fail"
_PERIOD_SECONDS: Final = 0.03
_CONFIG: Final = """
[DEFAULT]
transport_url = fake://
[api_settings]
auth_strategy = testing
enabled_provider_drivers = amphora:no-op
default_provider_driver = amphora
[database]
connection = sqlite:///{folder}/octavia.db?cached_statements=1000
sqlite_synchronous = false
[controller_worker]
network_driver = allowed_address_pairs_driver
"""
_NAMES: Final = {
    models.ProvisioningStatus: constants.SUPPORTED_PROVISIONING_STATUSES,
    models.OperatingStatus: constants.SUPPORTED_OPERATING_STATUSES,
    models.HealthMonitorType: constants.SUPPORTED_HEALTH_MONITOR_TYPES,
    models.Algorithm: constants.SUPPORTED_LB_ALGORITHMS,
    models.Protocol: constants.SUPPORTED_PROTOCOLS,
    models.SessionPersistenceType: constants.SUPPORTED_SP_TYPES,
    models.LBTopology: constants.SUPPORTED_LB_TOPOLOGIES,
    models.ClientAuthenticationMode: constants.SUPPORTED_CLIENT_AUTH_MODES,
}


class Provider(NoopProviderDriver):  # type: ignore[misc]  # it has no types
    """Octavia's own no-op, for which Octavia makes the port of the address in Neutron."""

    name = PROVIDER

    def create_vip_port(self, *arguments: Any, **options: Any) -> Any:
        """Leave it to Octavia."""
        raise NotImplementedError


def main() -> None:
    """Create the database, and serve."""
    neutron_port, port, folder = int(sys.argv.pop()), int(sys.argv.pop()), Path.cwd()
    config = folder / "octavia.conf"
    config.write_text(_CONFIG.format(folder=folder))
    provider = Provider()
    driver_factory.get_driver = lambda name: provider
    neutron = partial(_connect, f"http://127.0.0.1:{neutron_port}")
    clients.NeutronAuth.get_neutron_client = neutron
    clients.NeutronAuth.get_user_neutron_client = lambda context: neutron()
    # Octavia makes a driver for each request, which lists all extensions of Neutron.
    octavia_utils.get_network_driver = cache(octavia_utils.get_network_driver)
    # An option of connection pools, which SQLite has none of.
    cfg.CONF.set_default("pool_timeout", None, "database")
    application = app.setup_app(argv=["octavia-api", "--config-file", str(config)])
    engine = database.get_engine()
    base_models.BASE.metadata.create_all(engine)
    session = database.get_session()
    with session.begin():
        for table, names in _NAMES.items():
            session.add_all(table(name=name) for name in names)
    may_be_pending = threading.Event()
    threading.Thread(target=_finish_changes, args=(folder, may_be_pending), daemon=True).start()
    serve(_report_changes(application, may_be_pending), port)


def _connect(neutron: str) -> Any:
    """Return Octavia's own client of Neutron, without Keystone."""
    return openstack.connection.Connection(session=_open_session(neutron), network_endpoint_override=neutron)


@cache
def _open_session(neutron: str) -> Any:
    """Return the session that all clients share, with what they have discovered of Neutron."""
    return Session(auth=NoAuth(endpoint=neutron))


def _report_changes(application: Application, may_be_pending: threading.Event) -> Application:
    """Return the application, which sets the event after each request that may have changed an object."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        response = application(environ, start_response)
        if environ["REQUEST_METHOD"] != "GET":
            may_be_pending.set()
        return response

    return answer


def _finish_changes(folder: Path, may_be_pending: threading.Event) -> None:
    """Do what a provider's controller does: objects become ACTIVE, or are removed."""
    while True:
        may_be_pending.wait()
        time.sleep(_PERIOD_SECONDS)
        if (folder / HOLD).exists():
            continue
        may_be_pending.clear()
        session = database.get_session()
        with session.begin():
            pending = models.LoadBalancer.provisioning_status.like("PENDING%")
            for balancer in session.query(models.LoadBalancer).filter(pending):
                _finish(session, balancer, has_failed=(folder / FAIL).exists())


def _finish(session: Any, balancer: Any, *, has_failed: bool) -> None:
    if has_failed:
        balancer.provisioning_status = constants.ERROR
        return
    is_ending = balancer.provisioning_status == constants.PENDING_DELETE
    parts = [*balancer.listeners, *balancer.pools]
    if not is_ending:  # the last parts of a pool go with it
        for pool in balancer.pools:
            parts += [*pool.members, *filter(None, [pool.health_monitor])]
    for part in parts:
        if is_ending or part.provisioning_status == constants.PENDING_DELETE:
            session.delete(part)
        elif part.provisioning_status.startswith("PENDING"):
            part.provisioning_status, part.operating_status = constants.ACTIVE, constants.ONLINE
    session.flush()
    balancer.operating_status = constants.ONLINE
    balancer.provisioning_status = constants.DELETED if is_ending else constants.ACTIVE
    if is_ending:
        octavia_utils.get_network_driver().deallocate_vip(balancer.vip)
