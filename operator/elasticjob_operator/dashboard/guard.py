"""Who may ask the dashboard for what. Pure.

The server is reached from one machine only, but every page that the user's browser has open can send requests to it,
and every user of the machine can connect, and serve pages of their own. Hence: a secret in the URL, then in a cookie
that other sites' requests do not carry; a name below `localhost` that is this server's alone, because a browser sends a
cookie to all ports of a name; and a second secret in the forms.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

PLAIN: Final = "127.0.0.1"
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}


def _new_secret() -> str:
    return secrets.token_urlsafe(32)


@dataclass(frozen=True)
class Keys:
    """The secrets of one server; they end with it."""

    token: str = field(default_factory=_new_secret)  # in the URL that the command prints
    session: str = field(default_factory=_new_secret)  # in the cookie
    form: str = field(default_factory=_new_secret)  # in every form, against requests that other sites make


def _new_name() -> frozenset[str]:
    """Browsers resolve it to the loopback address by themselves."""
    return frozenset({f"{secrets.token_hex(8)}.localhost"})


@dataclass(frozen=True)
class Access:
    """What this server allows."""

    hosts: frozenset[str] = field(default_factory=_new_name)  # names under which it may be asked
    behind_proxy: bool = False  # a proxy has authenticated the user, so that no token is asked for
    read_only: bool = False


@dataclass(frozen=True)
class Asked:
    """What of a request matters."""

    method: str
    host: str
    origin: str = ""
    session: str = ""  # of the cookie
    token: str = ""  # of the URL


@dataclass(frozen=True)
class Refusal:
    status: int
    message: str


def judge(asked: Asked, keys: Keys, access: Access) -> Refusal | None:
    """Why this request is refused, before its body is read; None if it is not."""
    if host_name(asked.host) not in access.hosts:
        return Refusal(403, "This page is not served under this name. Open the address that the command printed.")
    if asked.method not in ("GET", "HEAD", "POST"):
        return Refusal(405, "Only GET and POST are understood.")
    if not access.behind_proxy and not (_equal(asked.session, keys.session) or has_token(asked, keys)):
        return Refusal(
            401, "Open the address that kubectl elasticjob dashboard printed: it holds a token for this browser."
        )
    if asked.method != "POST":
        return None
    if access.read_only:
        return Refusal(403, "This page only shows jobs. Use kubectl elasticjob to change one.")
    if asked.origin.lower() not in (f"{scheme}://{asked.host.lower()}" for scheme in ("http", "https")):
        return Refusal(403, "This form was sent by another page.")
    return None


def judge_form(key: str, keys: Keys) -> Refusal | None:
    """Why a form with this key is refused, of which the rest of the request is not; None if it is not."""
    return None if _equal(key, keys.form) else Refusal(403, "This page is of an earlier dashboard. Load it again.")


def has_token(asked: Asked, keys: Keys) -> bool:
    return asked.method == "GET" and _equal(asked.token, keys.token)


def host_name(host: str) -> str:
    """`localhost` of `localhost:8080`, `::1` of `[::1]:8080`; empty for what is no host."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def cookie_name(port: int) -> str:
    """Under a plain address, the cookies of all dashboards of the machine arrive together."""
    return f"elasticjob-dashboard-{port}"


def _equal(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), expected.encode())
