"""From a server's 401 to an Authorization header; it knows nothing of what was asked there.

| the server asks for | and we have | it gets |
| --- | --- | --- |
| Basic | a name and password | both |
| Bearer without a realm | a token | the token |
| Bearer with a realm | a name and password | a token from the realm, which gets both |
| Bearer with a realm of its own origin | a key | a token from the realm, which gets a signature; else as the next |
| Bearer with a realm | nothing | a token that the realm gives to everybody |

A signature is over `GET,<address>,<base64 of the hex sha256 of nothing>`, the address with time and nonce.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx

from registry.errors import RemoteError
from registry.remote.challenge import Challenge
from registry.remote.credentials import Credentials
from registry.remote.keys import load_or_make
from registry.remote.messages import error_of

_EMPTY_BODY = base64.b64encode(hashlib.sha256(b"").hexdigest().encode()).decode()

# Sends a request as it is; raises UnreachableError.
Fetch = Callable[[httpx.Request], httpx.Response]


class Tokens:
    """Answers challenges of one registry at `origin`. Without `key` nothing is signed."""

    def __init__(self, origin: httpx.URL, credentials: Credentials | None, key: Path | None, fetch: Fetch) -> None:
        self._origin = origin
        self._credentials = credentials
        self._key = key
        self._fetch = fetch

    def answer(self, challenges: Sequence[Challenge], scope: str) -> str | None:
        """An Authorization header for `scope` (where the challenge names none), or None: there is nothing to try.

        Raises:
            RemoteError: the realm refused.
            UnreachableError, KeyFileError.
        """
        by_scheme = {challenge.scheme: challenge for challenge in challenges}
        bearer = by_scheme.get("bearer")
        if bearer is not None and bearer.parameters.get("realm", "").startswith(("http://", "https://")):
            return f"Bearer {self._token(bearer, scope)}"
        credentials = self._credentials
        if credentials is None:
            return None
        if bearer is not None and not credentials.username:
            return credentials.bearer
        if "basic" in by_scheme:
            return credentials.basic
        return credentials.bearer if bearer is not None else None

    def _token(self, challenge: Challenge, scope: str) -> str:
        url = self._realm(challenge, scope)
        is_own = (url.scheme, url.host, url.port) == (self._origin.scheme, self._origin.host, self._origin.port)
        if self._credentials is not None:
            # A token server elsewhere is how registries work, but passwords do not go there in the clear.
            if not is_own and url.scheme != "https":
                raise RemoteError(url.host, 401, "asks for a password over an unprotected connection")
            credentials = self._credentials
            return self._ask(url, credentials.basic if credentials.username else credentials.bearer)
        if is_own and self._key is not None:
            try:
                return self._ask_signed(url, self._key)
            except RemoteError as error:
                if error.status >= 500:
                    raise
        return self._ask(url, None)

    def _realm(self, challenge: Challenge, scope: str) -> httpx.URL:
        parameters = challenge.parameters
        service = [("service", parameters["service"])] if parameters.get("service") else []
        scopes = [("scope", item) for item in (parameters.get("scope") or scope).split()]
        try:
            realm = httpx.URL(parameters["realm"])
        except httpx.InvalidURL as error:
            raise RemoteError(
                self._origin.netloc.decode(), 401, f"names a realm that is no address: {error}"
            ) from error
        return realm.copy_merge_params(httpx.QueryParams([*service, *scopes]))

    def _ask_signed(self, url: httpx.URL, key: Path) -> str:
        nonce = base64.urlsafe_b64encode(secrets.token_bytes(16)).rstrip(b"=").decode()
        url = url.copy_merge_params({"ts": str(int(time.time())), "nonce": nonce})
        return self._ask(url, load_or_make(key).sign(f"GET,{url},{_EMPTY_BODY}"))

    def _ask(self, url: httpx.URL, authorization: str | None) -> str:
        headers = {} if authorization is None else {"Authorization": authorization}
        response = self._fetch(httpx.Request("GET", url, headers=headers))
        if response.status_code != 200:
            raise error_of(response)
        try:
            document = response.json()
            token = document.get("token") or document.get("access_token")
        except (ValueError, AttributeError):
            token = None
        if not isinstance(token, str) or not token:
            raise RemoteError(url.host, response.status_code, "the token server gave no token")
        return token
