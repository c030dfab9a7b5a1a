"""The HTTP session to the trace collector, with the TLS context of every client."""

from typing import Any

from requests import Session
from requests.adapters import HTTPAdapter

from libs.common.client_tls import make_client_context


class _Adapter(HTTPAdapter):
    """Gives each connection a context of ours. requests loads the authorities and the client certificate."""

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, ssl_context=make_client_context(), **options)

    def proxy_manager_for(self, proxy: str, **options: Any) -> Any:
        return super().proxy_manager_for(proxy, ssl_context=make_client_context(), **options)


def make_session() -> Session:
    """Return a session for OTLPSpanExporter."""
    session = Session()
    session.mount("https://", _Adapter())
    return session
