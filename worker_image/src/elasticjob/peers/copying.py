"""The peers of one world: sends copies to the pods that are to hold them, and fetches what is missing."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from elasticjob.peers import choice, transport
from elasticjob.peers.choice import Peer
from elasticjob.peers.transport import ClosedError, Link, PeerError, RefusedError

logger = logging.getLogger("elasticjob")

_FULL_SECONDS = 10.0  # before a pod without room is asked again
_LONGEST_REST = 0.2  # until somebody may be in a hurry
_FETCH_SECONDS = 30.0  # for a pod that does not answer: if it is lost, the world ends sooner
_FAILURES = (OSError, PeerError, ValueError, KeyError, TypeError)


class ChangedError(Exception):
    """A file was changed while it was copied: it was not finished."""


class Peers:
    """Connections to the other agents of a world, and what they are known to hold. For one thread."""

    def __init__(self, me: int, peers: Sequence[Peer], key: Callable[[], str], bytes_per_second: float) -> None:
        self.me = me
        self.peers = peers
        self.over = False
        self.has_hurry = False  # nobody trains any more, so no rate is kept
        self._copies = True
        self._key = key
        self._holders = choice.order_holders(me, peers) if peers else []
        self._links: dict[int, Link] = {}
        self._held: dict[int, set[str]] = {}
        self._full: dict[int, float] = {}  # by rank: until when
        self._rate = bytes_per_second
        self._free_at = 0.0

    def end_copies(self) -> None:
        """Make no more of them, from any thread: all of these pods go."""
        self._copies = False

    def makes_copies(self) -> bool:
        return self._copies

    def shut(self) -> None:
        """End all requests, from any thread; call `close` next."""
        self.over = True
        for link in list(self._links.values()):
            link.shut()

    def close(self) -> None:
        self.over = True
        while self._links:
            self._links.popitem()[1].close()

    def call(self, rank: int, op: str, body: bytes = b"", /, **fields: Any) -> tuple[dict[str, Any], bytes]:
        """Send a request to this rank. Raises PeerError or OSError."""
        if rank in self._links:
            with contextlib.suppress(OSError, ClosedError):  # it was idle for long: connect again
                return self._ask(rank, op, body, **fields)
        if self.over:
            raise PeerError("the world is over")
        peer = self.peers[rank]
        self._links[rank] = transport.connect(peer.address, peer.port, self._key())
        return self._ask(rank, op, body, **fields)

    def tell(self, rank: int, op: str, body: bytes = b"", /, **fields: Any) -> tuple[dict[str, Any], bytes]:
        """As `call`, and close the connection: all members of a world have something to tell one of them."""
        try:
            return self.call(rank, op, body, **fields)
        finally:
            link = self._links.pop(rank, None)
            if link is not None:
                link.close()

    def _ask(self, rank: int, op: str, body: bytes, /, **fields: Any) -> tuple[dict[str, Any], bytes]:
        try:
            return self._links[rank].call(op, body, **fields)
        except RefusedError:
            raise
        except (OSError, PeerError):
            self._links.pop(rank).close()
            raise

    def copy(self, digests: set[str], replicas: int, read: Callable[[str], bytes | None]) -> int:
        """See that as many other pods hold these chunks. Returns how many do, which is fewer if there is no room.

        Raises ChangedError if a chunk cannot be read any more.
        """
        holders = 0
        for peer in self._holders:
            if holders >= replicas or self.over or not self._copies:
                break
            if self._full.get(peer.rank, 0.0) > time.monotonic():
                continue
            try:
                holders += self._copy_to(peer.rank, digests, read)
            except _FAILURES as error:
                logger.debug("rank %d holds no copies now: %s", peer.rank, error)
        return holders

    def _copy_to(self, rank: int, digests: set[str], read: Callable[[str], bytes | None]) -> bool:
        held = self._held.setdefault(rank, set())
        held &= digests
        while missing := digests - held:
            _, answer = self.call(rank, "missing", json.dumps(sorted(missing)).encode())
            absent = {str(digest) for digest in json.loads(answer)} & missing
            held |= missing - absent
            for digest in sorted(absent):
                if not self._copies:
                    return False
                data = read(digest)
                if data is None:
                    raise ChangedError
                self._wait_for(len(data))
                said, _ = self.call(rank, "put", data, digest=digest)
                if said.get("full"):
                    logger.warning("Pod of rank %d has no room for copies of checkpoints.", rank)
                    self._full[rank] = time.monotonic() + _FULL_SECONDS
                    return False
        return True

    def _wait_for(self, size: int) -> None:
        """Keep the rate: gradients use the same network."""
        while not (self.has_hurry or self.over) and (left := self._free_at - time.monotonic()) > 0:
            time.sleep(min(left, _LONGEST_REST))
        self._free_at = max(time.monotonic(), self._free_at) + size / self._rate

    def fetch(
        self, op: str, ranks: Sequence[int], accept: Callable[[bytes], bool], pause: Callable[[], None], **fields: Any
    ) -> bytes | None:
        """What the first of these ranks answers that is accepted; None if none of them has it.

        A rank that cannot be reached is asked again for a while, with a call of `pause` before that.
        """
        deadline = time.monotonic() + _FETCH_SECONDS
        while ranks:
            silent = []
            for rank in ranks:
                ask = self.tell if op == "record" else self.call  # all members may get a record from one of them
                try:
                    _, data = ask(rank, op, **fields)
                except RefusedError:
                    continue
                except _FAILURES as error:
                    logger.debug("rank %d does not answer: %s", rank, error)
                    silent.append(rank)
                else:
                    if accept(data):
                        return data
            if time.monotonic() > deadline:
                return None
            ranks = silent
            if ranks:
                pause()
        return None
