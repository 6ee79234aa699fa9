"""The report: the content of the page, and that a real browser renders it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from elasticjob_operator.client import Happening
from elasticjob_operator.client import history as past
from elasticjob_operator.html_report import Facts, render
from elasticjob_operator.html_report.bars import MOST_LANES, draw_shares, draw_stays
from elasticjob_operator.html_report.plot import clock, nice_ticks, time_ticks

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
START = 1_767_225_600.0
# (generation, size, cause, second, recovery)
PLAN = (
    (1, 4, "the job starts", 0, None),
    (2, 3, "a member was lost", 180, 0.9),
    (3, 4, "new pods are ready to join", 240, 1.4),
    (4, 6, "new pods are ready to join", 420, 1.8),
    (5, 5, "a worker failed", 560, 2.2),
)


def story() -> tuple[past.History, past.Sample]:
    """Ten minutes of a job that lost a member, grew, and saw a worker fail."""
    samples: list[past.Sample] = []
    step = 0
    for second in range(2, 600, 2):
        generation, size, cause, begin, cost = max(p for p in PLAN if p[3] <= second)
        training = second - begin >= 2
        step += size if training else 0
        samples.append(
            past.Sample(
                START + second, "Running", generation, size, size, training, START + begin, cause, step, 3000,
                START + second, {"loss": 2.3 * 0.998**step, "accuracy": 1 - 0.998**step},
                second * 0.97, second * 0.03, cost, 1,
                [[f"digits-worker-{i}", f"node-{i // 2}"] for i in range(size)] if second <= begin + 2 else [],
                generation, lost={"restart": second * 0.02, "rescale": second * 0.01},
            )
        )  # fmt: skip
    events = [
        Happening(START + 180, "Warning", "MemberLost", "digits-worker-3 <rank 3> is lost", "elasticjob/digits"),
        Happening(START + 560, "Warning", "WorkerFailed", "restart 1 charged: exit code 1", "elasticjob/digits"),
    ]
    return past.build_history(samples, events), samples[-1]


def page() -> str:
    history, last = story()
    failure = "rank 2 in digits-worker-2: exit code 1\nValueError: </pre><script>alert(1)</script>"
    return render(Facts("digits", "team-a", "Running", START + 600, failure), history, last)


def test_the_page_holds_everything_and_needs_nothing() -> None:
    text = page()
    assert text.count("<svg") == 6  # world size, ranks, throughput, loss, accuracy, how the time was spent
    assert not re.search(r"(?:src|href)=|@import|url\(", text), "a report must not load anything"
    assert "<script" not in text
    assert "&lt;/pre&gt;&lt;script&gt;" in text
    assert "digits-worker-3 &lt;rank 3&gt; is lost" in text
    for row in (
        '<td>new pods are ready to join</td><td class="n">1.80s</td>',
        '<td class="bad">a member was lost</td>',
        "<title>digits-worker-3 on node-1: generation 1, 0:00 to 3:00</title>",
        "<title>digits-worker-0 on node-0: generations 1 to 5, 0:00 to 9:58</title>",
        "<td>failures and lost members</td>",
    ):
        assert row in text
    assert "97.0%" in text


@pytest.mark.parametrize(("measured", "shown"), [("Steps", "<b>90.0%</b>"), ("Formation", "<b>≤90.0%</b>")])
def test_goodput_is_a_bound_where_no_steps_are_reported(measured: str, shown: str) -> None:
    samples = [past.Sample(START, "Running", training_seconds=90, lost_seconds=10, measured=measured)]
    assert shown in render(Facts("j", "d", "Running", START), past.build_history(samples, []), samples[-1])


def test_an_empty_history_is_a_page_too() -> None:
    facts, nothing = Facts("new", "default", "Pending", START), past.build_history([], [])
    text = render(facts, nothing, None)
    assert text.count("nothing was recorded") == 3
    assert "No world was formed yet" in text
    for last in (None, past.Sample(START, "Pending")):
        assert "No world has trained yet" in render(facts, nothing, last)


def test_a_bar_is_divided_as_the_time_was_spent() -> None:
    text = draw_shares("Spent", {"trained": (90.0, "trained"), "starting": (10.0, "start")})
    widths = [float(width) for width in re.findall(r' width="([0-9.]+)" height', text)]
    assert widths[0] == pytest.approx(9 * widths[1], rel=0.01)
    assert "<title>starting: 10.0s, 10.0%</title>" in text
    assert draw_shares("Spent", {"trained": (0.0, "trained")}) == ""


def test_lanes_are_named_by_the_ranks_of_the_script_and_only_the_first_are_drawn() -> None:
    stays = [past.Stay(rank, f"p-{rank}", "<node>\x1b", 0, 50, (1, 1)) for rank in range(60)]
    text = draw_stays(stays, start=0, end=100, processes=8)
    assert ">8-15</text>" in text and "the first 24 of 60 pods" in text
    assert text.count("<rect") == MOST_LANES
    assert "<title>p-1 on &lt;node&gt;\ufffd: generation 1, 0:00 to 0:50</title>" in text


def test_values_that_are_no_numbers_are_left_out() -> None:
    samples = [
        past.Sample(START + i, "Running", 1, 1, step=i, metrics={"loss": value})
        for i, value in enumerate((1.0, float("nan"), float("inf"), 0.5))
    ]
    text = render(Facts("j", "d", "Running", START), past.build_history(samples, []), samples[-1])
    assert "nan" not in re.sub(r"<style>.*</style>", "", text)
    assert "inf," not in text


def test_a_loss_that_falls_far_is_drawn_on_a_logarithmic_axis() -> None:
    def drawn(values: tuple[float, ...]) -> str:
        samples = [past.Sample(START + i, "Running", 1, 1, step=i, metrics={"loss": v}) for i, v in enumerate(values)]
        return render(Facts("j", "d", "Running", START), past.build_history(samples, []), samples[-1])

    far = drawn((8.0, 0.8, 0.08))
    assert "loss (logarithmic)" in far
    assert all(f">{tick}</text>" in far for tick in ("0.01", "0.1", "1", "10"))
    for near in ((2.0, 1.0), (100.0, 0.0), (5.0, -1.0)):
        assert "logarithmic" not in drawn(near)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 4, [0, 1, 2, 3, 4]),
        (0, 0.9, [0, 0.5, 1]),
        (0, 2.3, [0, 1, 2, 3]),
        (0, 1000, [0, 500, 1000]),
        (-1, 1, [-1, -0.5, 0, 0.5, 1]),
        (5, 5, [5]),
        (0, float("nan"), [0]),
    ],
)
def test_ticks_are_round(low: float, high: float, ticks: list[float]) -> None:
    assert nice_ticks(low, high) == ticks


def test_times_are_round() -> None:
    assert time_ticks(600)[:3] == [(0, "0:00"), (120, "2:00"), (240, "4:00")]
    assert len(time_ticks(10_000_000)) < 20
    assert clock(3 * 3600 + 61) == "3:01:01"


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: the report is not looked at in a browser")
def test_a_browser_draws_it(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text(page())
    picture = tmp_path / "report.png"
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
        f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1060,1500", "--hide-scrollbars",
        f"--screenshot={picture}", (tmp_path / "report.html").as_uri(),
    ]  # fmt: skip
    browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        assert browser.wait(90) == 0
    finally:
        end_group(browser)
    with Image.open(picture) as drawn:
        pixels = np.asarray(drawn.convert("RGB"))
    assert pixels.shape == (1500, 1060, 3)
    for name, colour in {"size": (53, 105, 212), "rate": (31, 157, 107), "loss": (194, 87, 26)}.items():
        assert (pixels == colour).all(axis=2).sum() > 200, f"the line of {name} is not on the picture"


def end_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 5e-324), (-1.7e308, 1.7e308), (0.0, 1.7e308), (1.0, 1.0000000000000002)]
)
def test_ticks_of_extremes(low: float, high: float) -> None:
    assert 1 <= len(nice_ticks(low, high)) < 20


def test_two_thousand_years_have_few_ticks() -> None:
    assert len(time_ticks(2000 * 365 * 86400)) < 20
