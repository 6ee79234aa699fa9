"""Measures the network between this pod and another one: latency, bandwidth and clocks. Used by the preflight.

A pod that is checked answers probes for as long as its agent lives, because pods that join later are measured with it.
The connections are those of `transport`: a frame that was changed on its way is noticed.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Callable
from typing import Final

from elasticjob.peers import transport
from elasticjob.peers.transport import Header, Link, PeerError
from elasticjob.protocol import preflight

_PINGS: Final = 20
_CHUNK: Final = 1 << 20  # bytes, sent in both directions
_MOST_CHUNKS: Final = 8
_SECONDS: Final = 1.0  # after which no further message is sent
_LIMIT_SECONDS: Final = 10.0  # for one measurement; a link that needs longer is broken


class Responder:
    """Answers the probes of other pods."""

    def __init__(self, address: str, key: Callable[[], str]) -> None:
        """Raises OSError."""
        self._server = transport.Server(address, key, _answer)
        self.port = self._server.port

    def close(self) -> None:
        self._server.close()


def _answer(header: Header, body: bytes) -> tuple[Header, bytes]:
    return {"time": time.time()}, body


def measure(peer: preflight.Peer, key: str, limit: float = _LIMIT_SECONDS) -> preflight.Link:
    """The link to this peer: the median round trip and bandwidth. Never raises; takes at most `limit` seconds, and
    a few more to connect.
    """
    try:
        link = transport.connect(peer.address, peer.port, key)
    except PeerError:
        return preflight.Link(peer.uid)  # it has another key, or too many visitors: no evidence about the network
    except OSError as error:
        return preflight.Link(peer.uid, problem=f"no connection to {peer.address}: {error}"[:200])
    watch = threading.Timer(limit, link.shut)
    watch.daemon = True
    started = time.monotonic()
    watch.start()
    try:
        return _measure(link, peer.uid)
    except (OSError, PeerError, ValueError) as error:
        slow = time.monotonic() - started >= limit
        text = f"{peer.address} took longer than {limit:g} s" if slow else f"{peer.address}: {error}"
        return preflight.Link(peer.uid, problem=text[:200])
    finally:
        watch.cancel()
        with contextlib.suppress(OSError):
            link.close()


def _measure(link: Link, uid: str) -> preflight.Link:
    times, offsets = [], []
    deadline = time.monotonic() + _SECONDS
    for _ in range(_PINGS):
        before, started = time.time(), time.monotonic()
        header, _ = link.call("probe")
        times.append(time.monotonic() - started)
        offsets.append(float(header["time"]) - before - times[-1] / 2)
        if time.monotonic() >= deadline:
            break
    chunk, took = bytes(_CHUNK), []
    deadline = time.monotonic() + _SECONDS
    for _ in range(_MOST_CHUNKS):
        started = time.monotonic()
        link.call("probe", chunk)
        took.append(time.monotonic() - started)
        if time.monotonic() >= deadline:
            break
    rate = 2 * _CHUNK / statistics.median(took)
    return preflight.Link(uid, statistics.median(times), rate, statistics.median(offsets))
