"""How a leader renews its Lease while the API server is slow, silent or refuses; no time passes for real."""

from __future__ import annotations

import asyncio
import itertools
import selectors
from collections.abc import Iterable
from typing import Any, cast

import pytest

from elasticjob_operator.kube import lease
from elasticjob_operator.kube.client import Api
from elasticjob_operator.kube.leadership import Leadership
from elasticjob_operator.kube.lease import Election, Timing
from elasticjob_operator.rest.errors import ApiError

SILENT, REFUSED = float("inf"), -1.0
MINUTES = 300.0  # seconds of the loop's own clock


class _Leap(selectors.DefaultSelector):
    """Nothing ever comes from outside: instead of waiting, the clock is set to when something is due."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        self.now += timeout or 0.0
        return super().select(0)


class Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._leap = _Leap()
        super().__init__(self._leap)

    def time(self) -> float:
        return self._leap.now


class Server:
    """An API server that needs so many seconds for each request in turn, and has got nothing of what it refuses."""

    def __init__(self, loop: Loop, delays: Iterable[float]) -> None:
        self.leadership = Leadership(loop.time)
        self.clock = loop.time
        self._delays = iter(delays)
        self._lease: dict[str, Any] = {}

    async def request(self, method: str, path: str, body: Any = None, *, timeout: float, urgency: object) -> Any:
        delay = next(self._delays)
        if delay == REFUSED:
            raise ApiError(500, "InternalError", "etcd has no leader")
        if delay >= timeout:
            await asyncio.sleep(timeout)
            raise ApiError(0, "NoReply", "no answer")
        await asyncio.sleep(delay)
        if method != "GET":
            self._lease = body
        elif not self._lease:
            raise ApiError(404, "NotFound", "no Lease")
        return self._lease


def after(start: tuple[float, ...], rest: float = 0.1) -> Iterable[float]:
    """The first two requests look at the Lease and take it."""
    return itertools.chain((0.1, 0.1, *start), itertools.repeat(rest))


@pytest.mark.parametrize(
    ("delays", "kept"),
    [
        pytest.param(after(()), True, id="answered at once"),
        pytest.param(after((), 2.9), True, id="each answer takes nearly three seconds"),
        pytest.param(after((SILENT,)), True, id="one request is lost"),
        pytest.param(after((0.1, 2.0, SILENT, 0.5, 0.5)), True, id="one is lost, and the next ones are slow"),
        pytest.param(after((REFUSED,) * 4), True, id="refused for four seconds"),
        pytest.param(after((), SILENT), False, id="no answer any more"),
        pytest.param(after((), REFUSED), False, id="refused"),
        pytest.param(after((), 4.0), False, id="each answer takes four seconds"),
    ],
)
def test_a_leader_keeps_its_lease_while_somebody_answers(
    delays: Iterable[float], kept: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loop = Loop()
    monkeypatch.setattr(lease, "read_clock", loop.time)
    timing = Timing(10.0)

    async def lead() -> float | None:
        """When leadership ended; None if it has not."""
        server = Server(loop, delays)
        election = Election(cast(Api, server), "t", "operator", "me", timing)
        await election.acquire()
        try:
            async with asyncio.timeout(MINUTES):
                await election.hold()
        except TimeoutError:
            assert server.leadership.is_held
            return None
        assert not server.leadership.is_held
        return loop.time()

    ended = loop.run_until_complete(lead())
    loop.close()
    assert (ended is None) is kept
    assert ended is None or ended <= timing.duration, "no other replica may lead before that"
    assert ("lost the Lease" in caplog.text) is not kept
    assert kept or "7.0 s after" in caplog.text, "it says for how long nothing was renewed"
