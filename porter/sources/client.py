"""The HTTP client: unearth's own, with pip's settings, and patience for a line that fails for a moment."""

from __future__ import annotations

import ssl
import sys
import time
from typing import Any, Self

from unearth.auth import MultiDomainBasicAuth
from unearth.fetchers import PyPIClient
from unearth.preparer import HTTPErrors

from porter.errors import ConfigError
from porter.sources.index import PipSettings, index_urls

# Answers that a second try may mend.
_TRANSIENT = frozenset({429, 500, 502, 503, 504, 520, 527})
_BACKOFF = 0.25


class RetryingClient(PyPIClient):
    """A client that asks again, up to ``retries`` times, waiting twice as long each time."""

    retries: int = 0

    @classmethod
    def of(cls, settings: PipSettings) -> Self:
        """The client for pip's settings.

        Raises:
            ConfigError: a certificate that cannot be read.
        """
        options: dict[str, Any] = {"proxy": settings.proxy} if settings.proxy else {}
        client = cls(
            trusted_hosts=settings.trusted_hosts,
            verify=_tls(settings),
            timeout=settings.timeout,
            follow_redirects=True,
            **options,
        )
        client.retries = settings.retries
        prompting = settings.prompt and sys.stdin is not None and sys.stdin.isatty()
        client.auth = MultiDomainBasicAuth(prompting=prompting, index_urls=index_urls(settings))
        return client

    def send(self, request: Any, **options: Any) -> Any:
        """Send a request, again when the connection fails or the server says that it is busy."""
        for attempt in range(self.retries + 1):
            last = attempt == self.retries
            try:
                response = super().send(request, **options)
            except HTTPErrors:
                if last:
                    raise
            else:
                if last or response.status_code not in _TRANSIENT:
                    return response
                response.close()
            time.sleep(_BACKOFF * 2**attempt)
        raise AssertionError("unreachable: the last attempt returns or raises")


def _tls(settings: PipSettings) -> ssl.SSLContext | bool:
    if settings.cert is None and settings.client_cert is None:
        return True
    path = settings.cert
    try:
        if path is None:
            context = ssl.create_default_context()
        elif path.is_dir():
            context = ssl.create_default_context(capath=str(path))
        else:
            context = ssl.create_default_context(cafile=str(path))
        if settings.client_cert is not None:
            path = settings.client_cert
            context.load_cert_chain(path)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"pip's certificate cannot be loaded: {error.strerror or error}",
            path=str(path),
            fix="correct `cert` or `client-cert` in pip's configuration, or the variable that replaces it",
        ) from error
    return context
