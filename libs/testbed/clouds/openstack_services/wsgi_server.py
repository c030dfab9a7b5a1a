"""Serves a WSGI application on the loopback. It runs in the environment of the services, not in ours."""

from __future__ import annotations

import gc
from collections.abc import Callable
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

Application = Callable[..., Any]
# Of a service that calls another one. Requests of clients have those that keystonemiddleware would set.
_ADMIN: Final = {
    "HTTP_X_IDENTITY_STATUS": "Confirmed",
    "HTTP_X_PROJECT_ID": "service",
    "HTTP_X_ROLES": "admin",
    "HTTP_X_USER_ID": "service",
}


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Handler(WSGIRequestHandler):
    def address_string(self) -> str:
        return self.client_address[0]


def authorize_services(application: Application) -> Application:
    """Return the application, for which a request without a project is one of an administrator."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        if "HTTP_X_PROJECT_ID" not in environ:
            environ.update(_ADMIN)
        return application(environ, start_response)

    return answer


def serve(application: Application, port: int) -> None:
    """Serve until the process ends."""
    gc.freeze()  # what the start has made stays
    gc.set_threshold(200_000)  # a request makes a quarter of that for its queries
    gc.enable()
    server = make_server(
        "127.0.0.1", port, authorize_services(application), server_class=_Server, handler_class=_Handler
    )
    server.serve_forever()
