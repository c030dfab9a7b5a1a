"""How `requests` sends for the libraries that need it: with TLS contexts of ours."""

import ssl
from collections.abc import Callable
from typing import Any

from requests.adapters import HTTPAdapter

from libs.common.client_tls import make_client_context


class TlsAdapter(HTTPAdapter):
    """Gives each connection a context of ours. requests adds authorities and a client certificate to it."""

    def __init__(self, make_context: Callable[[], ssl.SSLContext] = make_client_context) -> None:
        self._make_context = make_context
        super().__init__()

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, ssl_context=self._make_context(), **options)

    def proxy_manager_for(self, proxy: str, **options: Any) -> Any:
        return super().proxy_manager_for(proxy, ssl_context=self._make_context(), **options)
