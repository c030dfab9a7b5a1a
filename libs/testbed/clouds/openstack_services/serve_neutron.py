"""Serves Neutron from its package, with a database in the current folder: `neutron PORT`."""

from __future__ import annotations

import os
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from libs.testbed.clouds.openstack_services.wsgi_server import serve

_CONFIG: Final = """
[DEFAULT]
core_plugin = ml2
service_plugins = router
transport_url = fake://
auth_strategy = keystone
api_paste_config = {folder}/neutron-paste.ini
state_path = {folder}
notify_nova_on_port_status_changes = false
notify_nova_on_port_data_changes = false
rpc_workers = 0
[oslo_concurrency]
lock_path = {folder}
[database]
connection = sqlite:///{folder}/neutron.db?cached_statements=1000
sqlite_synchronous = false
[ml2]
type_drivers = local
tenant_network_types = local
mechanism_drivers =
extension_drivers = port_security
"""
_TOKENS: Final = " authtoken "  # the filter that asks Keystone; requests come with its headers


def main() -> None:
    """Create the database, and serve."""
    folder = Path.cwd()
    (folder / "neutron.conf").write_text(_CONFIG.format(folder=folder))
    # The package has the same file for its own tests.
    paste = files("neutron.tests").joinpath("etc/api-paste.ini").read_text()
    assert _TOKENS in paste
    (folder / "neutron-paste.ini").write_text(paste.replace(_TOKENS, " "))
    os.environ |= {"OS_NEUTRON_CONFIG_FILES": "neutron.conf", "OS_NEUTRON_CONFIG_DIR": str(folder)}
    port = int(sys.argv.pop())

    from neutron import server  # noqa: PLC0415 - it reads the environment

    serve(server.boot_server(_make_application, prog="neutron-api"), port)


def _make_application() -> Any:
    from neutron.db.migration.models import head  # noqa: F401, PLC0415 - has all tables
    from neutron.server import api  # noqa: PLC0415
    from neutron_lib.db import api as database  # noqa: PLC0415
    from neutron_lib.db import model_base  # noqa: PLC0415

    model_base.BASEV2.metadata.create_all(database.CONTEXT_WRITER.get_engine())
    return api.api_server()
