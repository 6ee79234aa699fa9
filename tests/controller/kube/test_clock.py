"""The time of the cluster, and the token that a pod has for a while, whatever happens to this machine's clock."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path

import pytest
from aiohttp import web
from kubernetes.aio import client

from controller.api_fixture import answering
from elasticjob_operator.kube.clock import RESPONSES, ClusterClock, parse_date
from elasticjob_operator.kube.token_file import SECONDS, TokenFile
from elasticjob_operator.rest.errors import ApiError

NOW = 1_800_000_000.0


@dataclass
class Machine:
    """A machine whose clock is ahead of the API server's by `wrong` seconds when the operator starts."""

    wrong: float = 0.0
    passed: float = 0.0
    clock: ClusterClock = field(init=False)

    def __post_init__(self) -> None:
        self.clock = ClusterClock(lambda: NOW + self.wrong + self.passed, lambda: 55.0 + self.passed)

    @property
    def error(self) -> float:
        """By which the operator's time is ahead of the API server's."""
        return self.clock() - NOW - self.passed

    def hear(self, *, ahead: float = 0.0, seconds: float = 0.01) -> None:
        """A response to a request of so many seconds, from an API server whose clock is ahead of the others'."""
        self.clock.note(formatdate(NOW + self.passed - seconds / 2 + ahead, usegmt=True), seconds)


def test_a_machine_whose_clock_is_set_goes_on_counting() -> None:
    machine = Machine()
    for wrong in (3600.0, -7200.0, 0.0):
        machine.wrong = wrong
        machine.passed += 10.0
        assert machine.error == pytest.approx(0.0)
        machine.hear()
        assert machine.error == pytest.approx(0.0)


@pytest.mark.parametrize("wrong", [600.0, -600.0, 1e9, -1e9, 2.0, -2.0])
def test_the_first_response_counts_where_this_machine_is_wrong(wrong: float, caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine(wrong)
    machine.hear()
    assert abs(machine.error) <= 2.0
    assert ("clock" in caplog.text) == (abs(wrong) > 30)


def test_time_does_not_move_with_whole_seconds_and_slow_responses() -> None:
    machine = Machine(0.4)
    for seconds in (0.01, 0.5, 30.0, 0.02, 3.0):
        for _ in range(20):
            machine.passed += 0.37
            machine.hear(seconds=seconds)
            assert machine.error == pytest.approx(0.4)


def test_one_api_server_of_three_that_is_wrong_is_outvoted() -> None:
    machine = Machine()
    for turn in range(60):
        machine.passed += 1.0
        machine.hear(ahead=3600.0 if turn % 3 == 2 else 0.3)
        assert abs(machine.error) <= 2.0


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_an_api_server_whose_clock_is_set_is_followed(jump: float) -> None:
    machine = Machine()
    for _ in range(RESPONSES):
        machine.hear()
    for _ in range(RESPONSES):
        machine.passed += 1.0
        machine.hear(ahead=jump)
    assert abs(machine.error - jump) <= 2.0


@pytest.mark.parametrize("text", [None, "", "soon", "Fri, 31 Foo 2026 00:00:00 GMT", "Fri, 01 Jan 99999 00:00:00 GMT"])
def test_what_is_no_date_changes_nothing(text: str | None) -> None:
    assert parse_date(text) is None
    machine = Machine()
    machine.clock.note(text, 0.1)
    assert machine.error == pytest.approx(0.0)


@pytest.mark.timeout(30)
async def test_what_a_proxy_says_while_the_api_server_is_away_is_not_the_time(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        is_away = "away" in request.path
        headers = {"Date": formatdate(NOW + (86_400 if is_away else 0), usegmt=True)}
        return web.json_response({}, status=503 if is_away else 200, headers=headers)

    async with asyncio.timeout(20), answering(answer, tmp_path) as api:
        await api.request("GET", "/api/v1/here")
        for _ in range(RESPONSES):
            with pytest.raises(ApiError, match="503"):
                await api.request("GET", "/api/v1/away")
        assert abs(api.clock() - NOW) <= 10.0


def test_a_date_is_in_seconds() -> None:
    assert parse_date(formatdate(NOW, usegmt=True)) == NOW
    assert parse_date("Fri, 15 Jan 2027 09:00:00 +0100") == parse_date("Fri, 15 Jan 2027 08:00:00 GMT")


@pytest.mark.timeout(30)
async def test_every_kind_of_response_tells_the_time(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        headers = {"Date": formatdate(NOW, usegmt=True)}
        return web.json_response({}, status=404 if "gone" in request.path else 200, headers=headers)

    for ask in ("request", "gone", "watch"):
        async with asyncio.timeout(20), answering(answer, tmp_path) as api:
            assert abs(api.clock() - NOW) > 3600
            try:
                if ask == "watch":
                    async for _ in api.stream("/api/v1/pods", (), 1.0):
                        pass
                else:
                    await api.request("GET", f"/api/v1/{ask}")
            except Exception as error:
                assert "404" in str(error), error
            assert abs(api.clock() - NOW) <= 5.0, ask


def test_a_token_is_read_again_every_minute_by_a_clock_that_nobody_sets(tmp_path: Path) -> None:
    now = 7.0
    path = tmp_path / "token"
    path.write_text("first\n")
    file, configuration = TokenFile(path, lambda: now), client.Configuration()
    file.refresh(configuration)
    assert configuration.api_key["BearerToken"] == "Bearer first"
    path.write_text("second")
    now += SECONDS - 1
    file.refresh(configuration)
    assert configuration.api_key["BearerToken"] == "Bearer first"
    now += 1
    file.refresh(configuration)
    assert configuration.api_key["BearerToken"] == "Bearer second"
    path.unlink()
    now += SECONDS
    file.refresh(configuration)
    assert configuration.api_key["BearerToken"] == "Bearer second", "the last one, while the kubelet writes"
    path.write_text("third")
    file.refresh(configuration)
    assert configuration.api_key["BearerToken"] == "Bearer third"
