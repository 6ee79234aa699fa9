"""The model of large sizes: its engine, its counts, and that it still agrees with what was measured."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from benchmarks import blocks, harness
from benchmarks.simulation import __main__ as command
from benchmarks.simulation import constants, limits, measured, page, report, scenarios
from benchmarks.simulation.engine import Simulation, Station
from elasticjob_operator.hub import limits as hub_limits

VALUES = json.loads(command.RESULT.read_text())
MEASURED = measured.Measured.load(VALUES["measured"])
MADE = constants.Constants(handshake=1e-3, message=1e-4, ping=1e-4, agent_bytes=1000.0, latency=0.01)


def test_events_happen_in_the_order_of_their_times() -> None:
    simulation, seen = Simulation(), list[tuple[str, float]]()
    for name, time in (("b", 2.0), ("a", 1.0), ("c", 2.0)):
        simulation.at(time, lambda name=name: seen.append((name, simulation.now)))  # type: ignore[misc]
    simulation.at(1.0, lambda: simulation.after(0.5, lambda: seen.append(("later", simulation.now))))
    simulation.run(until=1.8)
    assert seen == [("a", 1.0), ("later", 1.5)]
    assert simulation.now == 1.8
    simulation.run()
    assert [name for name, _ in seen[2:]] == ["b", "c"]


def test_a_station_serves_in_the_order_of_arrival_on_all_its_servers() -> None:
    simulation, ends = Simulation(), list[float]()
    station = Station(simulation, servers=2)
    for seconds in (1.0, 3.0, 1.0, 1.0):
        station.work(seconds, lambda: ends.append(simulation.now))
    assert station.waits == 3.0
    simulation.run()
    assert ends == [1.0, 2.0, 3.0, 3.0]
    assert (station.busy, station.served) == (6.0, 4)


def test_a_change_costs_the_messages_that_real_agents_send() -> None:
    counts = scenarios.change(MADE, 50).counts
    directives, states = counts["regroup"] + counts["world"], counts["stopping"] + counts["ready"] + counts["running"]
    assert (directives, states) == (2 * 50, 3 * 50), "as in test_benchmarks_counts, for each survivor"
    assert counts["bytes"] < 50 * 1500


def test_a_hub_that_is_busy_all_the_time_takes_as_long_as_its_messages() -> None:
    outcome = scenarios.change(MADE, 400)
    assert outcome.cpu == pytest.approx(400 * 5 * MADE.message)
    assert outcome.seconds == pytest.approx(limits.estimate_change(MADE, 400), rel=0.15)


def test_a_fast_hub_waits_for_the_network_alone() -> None:
    quick = replace(MADE, message=1e-9)
    assert scenarios.form(quick, 10).seconds == pytest.approx(0.01, rel=0.01)
    assert scenarios.change(quick, 10).seconds == pytest.approx(0.03, rel=0.01), "regroup, ready, world"


def test_shards_divide_what_one_hub_does() -> None:
    assert scenarios.connect(MADE, 1000).seconds == pytest.approx(1.0 + MADE.latency)
    assert scenarios.connect(MADE, 1000, hubs=10).seconds == pytest.approx(0.1 + MADE.latency)
    one, ten = scenarios.rest(MADE, 2000), scenarios.rest(MADE, 2000, hubs=10)
    told = 10 * 2000 / hub_limits.heartbeat_seconds(2000, hub_limits.HubSettings())
    assert one.counts["ping"] == pytest.approx(told, rel=0.03), "each at the interval that it was told"
    assert constants.count_pings(2000) == pytest.approx(told / 10, rel=0.01)
    assert ten.counts["ping"] == pytest.approx(2000 / 1 * 10, rel=0.01), "an interval of 1 s for 200 on each"


def test_creating_jobs_costs_the_writes_of_their_lives() -> None:
    outcome = scenarios.create(MADE, jobs=7, pods=3)
    assert outcome.counts["writes"] == 7 * (1 + 3 + 3), "the user's, the pods', and three"
    assert outcome.seconds == pytest.approx(7 * 7 * MADE.write, rel=0.2)


def test_churn_keeps_up_until_the_api_server_is_busy() -> None:
    calm = scenarios.churn(MADE, jobs=20, agents=3, losses=5, seconds=4)
    assert calm.kept_up
    assert calm.api_share == pytest.approx(5 * scenarios.WRITES_OF_A_LOSS * MADE.write, rel=0.5)
    storm = scenarios.churn(replace(MADE, write=0.1), jobs=20, agents=3, losses=5, seconds=4)
    assert not storm.kept_up
    assert storm.percentile(0.99) > 2 * calm.percentile(0.99)
    assert calm == scenarios.churn(MADE, jobs=20, agents=3, losses=5, seconds=4), "the seed decides"


def test_the_first_limit_to_break_comes_first() -> None:
    found = limits.find_breaks(MADE)
    sizes = [agents for _, agents in found if agents is not None]
    assert sizes == sorted(sizes)
    for limit, agents in found:
        if agents is not None:
            assert limit.measure(MADE, agents) > limit.bound >= limit.measure(MADE, int(agents * 0.97) - 1), limit.name


def test_no_limit_breaks_where_nothing_costs_anything() -> None:
    limit = limits.Limit("never", "s", 1.0, lambda _constants, _agents: 0.0, "")
    assert limits.find_break(limit, MADE) is None


def make_line(case: str, median: float | None) -> dict[str, Any]:
    return {"case": case, "seconds": {"min": median, "median": median, "max": median}}


HUB = [make_line(f"{size} agents, TLS: {case}", size / 100) for size in (100, 1000) for case in measured.HUB_CASES]
CREATED = [make_line("1 x 100: create to all pods exist", 0.5), make_line("1 x 100: controller CPU", 9.0)]


def test_the_measurements_are_read_from_result_lines() -> None:
    never = make_line("1000 x 1: create to all pods exist", None)
    found = measured.read([*HUB, make_line("1000 agents, plain: connect, to the last welcome", 7.0)], [*CREATED, never])
    assert {key: value for key, value in found.hub.items() if key[0] == "connect"} == {
        ("connect", 100): 1.0,
        ("connect", 1000): 10.0,
    }
    assert found.creation == {(1, 100): 0.5}
    assert measured.Measured.load(json.loads(json.dumps(found.dump()))) == found


@pytest.mark.parametrize(
    ("hub", "controlplane", "message"),
    [
        pytest.param([], CREATED, "of the hub: change, connect, form", id="no hub"),
        pytest.param(HUB, [], "of the control plane", id="no control plane"),
    ],
)
def test_a_result_that_is_not_there_is_named(hub: list[Any], controlplane: list[Any], message: str) -> None:
    with pytest.raises(measured.MissingError, match=message):
        measured.read(hub, controlplane)


def test_the_model_agrees_with_what_was_measured() -> None:
    """The committed values are those of their measurements; `test_..._simulated_again` simulates them again."""
    checks = [report.Check(**one) for one in VALUES["checks"]]
    assert [one.measured for one in checks] == [*MEASURED.hub.values(), *MEASURED.creation.values()]
    assert report.find_bad(checks) == []
    assert set(report.EXCEPTIONS) <= {one.name for one in checks}
    fitted = report.check_hub(
        constants.fit(MEASURED.hub), {key: value for key, value in MEASURED.hub.items() if key[1] == 1000}
    )
    assert report.find_bad(fitted) == []


def test_the_simulation_is_that_of_the_kept_results() -> None:
    kept = command.read_measured()
    if not {*MEASURED.hub, *MEASURED.creation} <= {*kept.hub, *kept.creation}:
        pytest.skip("the kept results are those of a quick run: they have not all sizes")
    assert kept == MEASURED, command.__doc__


@pytest.mark.long
def test_the_committed_values_are_those_that_are_simulated_again() -> None:
    assert json.loads(json.dumps(command.simulate(MEASURED))) == VALUES


def test_every_block_of_the_page_is_generated() -> None:
    found = {f"simulation {name}": text for name, text in page.render(VALUES).items()}
    text = (harness.ROOT / "docs" / "scale.md").read_text()
    assert blocks.fill(text, found) == text
    with pytest.raises(blocks.BlockError, match="known: simulation breaks"):
        blocks.fill("<!-- generated: nothing -->\n<!-- end -->", found)
