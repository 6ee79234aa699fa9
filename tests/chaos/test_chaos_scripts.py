"""Generated training scripts, the short form; `make chaos CHAOS_ARGS="--only scripts"` draws hundreds."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from chaos import scripts
from chaos import scripts_features as features
from chaos.scripts import run
from chaos.scripts_agents import Start
from chaos.scripts_features import DDP, FEATURES, FSDP, RESTART, VIRTUAL
from chaos.scripts_judge import (
    Run,
    Suspend,
    check_suspends,
    compare,
    count_made,
    find_differences,
    find_unexplained,
    find_unfinished,
)
from chaos.scripts_text import draw, write
from chaos.scripts_worlds import LARGEST, choose_start, draw_orders, plan
from chaos.sessions import LOSSES
from worker.gang_helper import clean_environment

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(30, id="any"),
        pytest.param(42007, id="random numbers after the gradient", marks=pytest.mark.long),
        pytest.param(42201, id="a rank leaves before it has its session", marks=pytest.mark.long),
        pytest.param(551, id="a queue, and groups that are added later", marks=pytest.mark.long),
    ],
)
def test_a_script_trains_the_same_while_its_world_changes(seed: int) -> None:
    """Of so many steps as when these have shown something."""
    assert run(seed, 1, agents=0, steps=24).violations == []


def test_what_tutorials_change_before_the_optimizer_is_right_after_a_loss() -> None:
    assert plan(1, 3)[1][1][2].kind == "crash"
    assert run(1, 0, agents=0, each=[one.name for one in features.TUTORIALS]).violations == []


@pytest.mark.parametrize(
    "seed", [pytest.param(19, id="while it trains"), pytest.param(27, id="as soon as others have come")]
)
def test_a_suspended_script_loses_no_step_and_goes_on_from_its_state(seed: int) -> None:
    assert "suspend" in [event.kind for _, _, event in plan(seed, 3)[1]]
    assert run(seed, 0, agents=1, each=["Checkpointer"]).violations == []


@pytest.mark.parametrize(("has_ended", "said"), [(True, "at exit\n"), (False, "at exit\nfreed\n")])
def test_a_script_leaves_to_the_kernel_what_it_shares_with_its_parent(has_ended: bool, said: str) -> None:
    text = f"""
import atexit
import chaos.scripts_worlds

class Kept:
    def __del__(self):
        print("freed", flush=True)

kept = Kept()
atexit.register(print, "at exit")
has_ended = {has_ended}
"""
    ended = subprocess.run(
        [sys.executable, "-c", text], env=clean_environment(), check=True, timeout=120, stdout=subprocess.PIPE
    )
    assert ended.stdout.decode() == said


def test_a_piece_of_the_scripts_says_with_which_one_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_worlds(*arguments: str, module: str) -> Iterator[dict[str, Any]]:
        options = dict(zip(arguments[::2], map(float, arguments[1::2]), strict=True))
        assert options == {"--seed": 110, "--scripts": 400, "--agents": 5, "--streams": 3, "--minutes": 2}
        for seed in (111, 110, 112):  # as they end
            found = {"script": f"seed {seed}", "seconds": 1.0, "forms": [], "done": {"restart": ["grow"]}}
            yield found | {"violations": ["a mistake"] if seed == 111 else []}

    monkeypatch.setattr(scripts, "run_worlds", run_worlds)
    report = run(10, 500, side_by_side=3, first=100, minutes=2.0)
    assert (report.histories, report.faults, report.violations) == (3, 3, ["seed 111: a mistake"])
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {name: told[name] for name in ("from", "next", "of")} == {"from": 100, "next": 103, "of": 500}


def test_only_what_torch_and_python_leave_themselves_may_be_left() -> None:
    of_torch = ["torchelastic_5ur0d", "torchinductor_root", "pymp-1", "pymp-2"]
    assert find_unexplained(of_torch) == []
    assert find_unexplained(["elasticjob-agent-1", *of_torch, "torchelastic_x"]) == [
        "elasticjob-agent-1",
        "torchelastic_x",
    ]


def test_a_piece_that_has_no_script_is_refused() -> None:
    command = [sys.executable, "-m", "chaos", "--only", "scripts", "--scripts", "20", "--from", "20"]
    ended = subprocess.run(command, check=False, env=clean_environment(), timeout=120, capture_output=True, text=True)
    assert ended.returncode == 2
    assert "--from 20 must be less than --scripts 20" in ended.stderr


def test_no_script_is_begun_after_the_time() -> None:
    args = argparse.Namespace(seed=7, scripts=3, only=None, each=(), minutes=None)
    assert [order["seed"] for order in draw_orders(args)] == [7, 8, 9]
    args.minutes = -1.0
    assert list(draw_orders(args)) == []


@pytest.mark.parametrize(
    ("seed", "agents", "expected"),
    [
        pytest.param(0, 0, None, id="no agents"),
        pytest.param(7, 5, None, id="not one with agents"),
        pytest.param(0, 5, Start(), id="agents that make the imports of a script"),
        pytest.param(25, 5, Start(warm=False), id="agents that are new interpreters"),
        pytest.param(35, 5, Start(header=Path("header")), id="agents with the imports of a script made"),
    ],
)
def test_a_share_of_the_agents_makes_imports_itself(seed: int, agents: int, expected: Start | None) -> None:
    assert choose_start(seed, agents, Path("header")) == expected


def test_some_agents_make_imports_themselves() -> None:
    starts = [choose_start(seed, 5, Path("header")) for seed in range(500)]
    kinds = [Start(header=Path("header")), Start(), Start(warm=False), None]
    assert [starts.count(kind) for kind in kinds] == [80, 10, 10, 400]


_STREAMS = """
import os, sys, time
from pathlib import Path
from chaos.scripts_streams import work_through

folder, dies = Path(sys.argv[1]), sys.argv[2] == "dies"

def make(stack):
    (folder / str(os.getpid())).touch()
    def work(order):
        while len(list(folder.iterdir())) < 3:  # all work at a time
            time.sleep(0.01)
        if dies and order["number"] == 4:
            os._exit(9)
        if dies and order["number"] > 4:
            time.sleep(3600)
        return order | {"pid": os.getpid()}
    return work

for answer in work_through(({"number": number} for number in range(7)), 3, make):
    assert answer["pid"] != os.getpid()
    print(answer["number"], flush=True)
"""


@pytest.mark.parametrize("dies", [False, True])
def test_streams_work_side_by_side_and_none_is_lost_unseen(tmp_path: Path, dies: bool) -> None:
    """One that dies is told, and the others end with it, whatever they work on."""
    command = [sys.executable, "-c", _STREAMS, str(tmp_path), "dies" if dies else "lives"]
    ended = subprocess.run(command, check=False, env=clean_environment(), timeout=120, capture_output=True, text=True)
    assert (ended.returncode == 0) is not dies, ended.stderr
    if dies:
        assert "StreamFailedError: process" in ended.stderr.splitlines()[-1]
        assert not [one.name for one in tmp_path.iterdir() if Path("/proc", one.name).exists()]
    else:
        assert sorted(map(int, ended.stdout.split())) == [*range(7)]


_FORKING = """
import os, sys
from chaos.scripts_streams import work_through

def make(stack):
    def work(order):
        child = os.fork()
        if not child:
            raise SystemExit(7)  # as a worker that has come to the end of its script
        return {"status": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}
    return work

assert [one["status"] for one in work_through(iter([{}, {}, {}]), 3, make)] == [7, 7, 7]
"""


def test_what_a_stream_forks_keeps_no_channel_of_streams() -> None:
    """Where a script shows all warnings, they would be told for its own."""
    command = [sys.executable, "-W", "always", "-c", _FORKING]
    ended = subprocess.run(command, check=False, env=clean_environment(), timeout=120, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_every_feature_is_drawn_and_every_script_is_python() -> None:
    drawn = [draw(seed) for seed in range(600)]
    for script in drawn:
        for form, text in script.texts.items():
            compile(text, f"{script}, {form}", "exec")
    assert {name for script in drawn for name in script.features} == {one.name for one in FEATURES}
    assert {script.engine for script in drawn} == {DDP, VIRTUAL, FSDP}
    assert str(draw(7)) == str(draw(7)) and draw(7).texts == draw(7).texts


def test_every_name_in_a_script_is_bound(tmp_path: Path) -> None:
    for seed in range(600):
        for form, text in draw(seed).texts.items():
            (tmp_path / f"{seed}_{form}.py").write_text(text)
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--select", "F821", str(tmp_path)]
    found = subprocess.run([*command, "--output-format", "json"], check=False, timeout=120, capture_output=True)
    of_one_form = ("`session`", "`micro`")  # behind a look at which form it is
    messages = [(Path(one["filename"]).name, one["message"]) for one in json.loads(found.stdout)]
    assert [one for one in messages if not one[1].endswith(of_one_form)] == []


@pytest.mark.parametrize("feature", [one for one in FEATURES if one in features.OPTIMIZERS], ids=lambda one: one.name)
def test_every_optimizer_of_torch_exists_or_is_known_not_to(feature: features.Feature) -> None:
    text = write(1, feature.engines[0], [feature]).texts[RESTART]
    assert f"torch.optim.{feature.name.split()[0].strip(',')}(" in text


def test_no_optimizer_of_torch_is_forgotten() -> None:
    undrawn = {"Optimizer", "SparseAdam"}  # torch's DDP reduces sparse gradients wrongly
    kinds = {name for name, one in vars(torch.optim).items() if isinstance(one, type)} - undrawn
    made = [write(1, one.engines[0], [one]) for one in FEATURES if one.engines != (FSDP,)]
    texts = " ".join(script.texts[RESTART] for script in made)
    assert {name for name in kinds if f"torch.optim.{name}(" not in texts} == set()


def test_a_script_executes_itself_again_before_it_does_anything_else() -> None:
    """A timer outlives that, and its handler does not."""
    wanted = ("SGD", "Checkpointer", "fault handlers", "executes itself again")
    text = write(1, DDP, [one for one in FEATURES if one.name in wanted]).texts[RESTART]
    assert text.index("os.execv") < text.index("signal.setitimer")


def test_plans_leave_a_world() -> None:
    for seed in range(500):
        size, events = plan(seed, 3)
        for _, _, event in events:
            size += {"grow": 1, "grow-and-kill": 1, "shrink": -1}.get(event.kind, 0) - LOSSES.get(event.kind, 0)
            assert 1 <= size <= LARGEST


def test_the_documentation_lists_the_features() -> None:
    text = (Path(__file__).parents[2] / "docs/elastic-scripts.md").read_text()
    listed = text.partition("<!-- features of generated scripts -->\n\n")[2].partition("\n\n<!-- end -->")[0]
    assert listed == features.describe()


def line(step: int, **changes: Any) -> dict[str, Any]:
    return {"step": step, "generation": 1, "rank": 0, "world": 1, "seen": [step]} | changes


TWO = [line(1), line(2)]


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        pytest.param(TWO, None, id="the same"),
        pytest.param([line(1)], "step 2 was never made", id="a step less"),
        pytest.param([line(1), line(2, seen=[9])], "step 2 has seen [9], and should [2]", id="another sample"),
        pytest.param([line(1), line(2, seen=[9]), line(2, generation=2)], None, id="made again"),
        pytest.param([line(1), line(2, world=2, seen=[])], None, id="a rank that missed the end of a step"),
        pytest.param([line(1), line(2, world=2, seen=[2, 2])], "step 2 has seen [2, 2]", id="a sample twice"),
    ],
)
def test_the_judge_sees_samples(lines: list[dict[str, Any]], problem: str | None) -> None:
    wrong = compare(Run(lines, {0: {}}), Run(TWO, {0: {}}), 2, 1e-7)
    assert (not wrong) if problem is None else (bool(wrong) and problem in wrong[0])


@pytest.mark.parametrize(
    ("restored", "weight", "is_told", "problem"),
    [
        pytest.param(9, 1.0, True, None, id="nothing is lost"),
        pytest.param(8, 1.0, True, "the suspend at step 9 cost all steps after 8", id="a step is lost"),
        pytest.param(6, 1.0, False, None, id="since the last save"),
        pytest.param(3, 1.0, False, "cost all steps after 3", id="since the save before"),
        pytest.param(9, 1.5, True, "step 9 has /weights/0 1.5, not 1.0", id="another state"),
    ],
)
def test_the_judge_sees_what_a_suspend_costs(restored: int, weight: float, is_told: bool, problem: str | None) -> None:
    lines = [line(step, state=[1.0]) for step in range(1, 10)]
    lines.append({"restored": restored, "generation": 2, "rank": 0, "world": 1, "state": [weight]})
    wrong = list(check_suspends(Run(lines, suspends=[Suspend(9, 1)]), 24, 3, is_told, 1e-7))
    assert (not wrong) if problem is None else (len(wrong) == 1 and problem in wrong[0])


@pytest.mark.parametrize(
    ("running", "made"),
    [
        pytest.param(None, 3, id="a session"),
        pytest.param(1, 3, id="the world that runs"),
        pytest.param(2, 2, id="a newer world, which has repeated a part"),
        pytest.param(3, 0, id="a newer world that has not made a step"),
        pytest.param(0, 0, id="no world"),
    ],
)
def test_the_judge_does_not_take_the_cost_of_a_change_for_that_of_a_suspend(running: int | None, made: int) -> None:
    lines = [line(step) for step in (1, 2, 3)] + [line(2, generation=2), {"restored": 1, "generation": 2}]
    assert count_made(lines, running) == made


@pytest.mark.parametrize(
    ("own", "problem"),
    [
        pytest.param({"w": torch.ones(2), "n": 3, "lr": 0.1}, None, id="the same"),
        pytest.param({"w": torch.ones(2) + 1e-9, "n": 3, "lr": 0.1}, None, id="rounding"),
        pytest.param({"w": torch.ones(2) + 1e-4, "n": 3, "lr": 0.1}, "/w off by 0.0001", id="a mistake"),
        pytest.param({"w": torch.ones(3), "n": 3, "lr": 0.1}, "/w of torch.float32[3]", id="another shape"),
        pytest.param({"w": torch.ones(2), "n": 4, "lr": 0.1}, "/n 4, not 3", id="another number"),
        pytest.param({"w": torch.ones(2), "n": 3, "lr": 0.2}, "/lr 0.2, not 0.1", id="another rate"),
        pytest.param({"w": torch.ones(2), "n": 3}, "no /lr", id="something missing"),
    ],
)
def test_the_judge_sees_states(own: dict[str, Any], problem: str | None) -> None:
    wrong = list(find_differences(own, {"w": torch.ones(2), "n": 3, "lr": 0.1}, 1e-7))
    assert (not wrong) if problem is None else (len(wrong) == 1 and problem in wrong[0])


def test_a_run_leaves_nothing_unfinished() -> None:
    run = Run(TWO, {0: {}}, ["saved/step-1", "saved/.tmp-step-2"])
    assert compare(run, Run(TWO, {0: {}}), 2, 1e-7) == ["saved/.tmp-step-2 is left"]


@pytest.mark.parametrize(
    ("worlds", "newest", "names", "left"),
    [
        pytest.param(2, "", ["dcp-6/.metadata.tmp"], [], id="of a world that has ended"),
        pytest.param(1, "", ["dcp-6/.metadata.tmp"], ["dcp-6/.metadata.tmp"], id="of no world that has ended"),
        pytest.param(2, "dcp-6", ["dcp-6/.metadata.tmp"], ["dcp-6/.metadata.tmp"], id="of the newest save"),
        pytest.param(3, "dcp-12", ["dcp-4/.metadata.tmp", "dcp-8/.metadata.tmp"], [], id="one of each"),
        pytest.param(
            2, "", ["dcp-4/.metadata.tmp", "dcp-8/.metadata.tmp"], ["dcp-8/.metadata.tmp"], id="more than one of each"
        ),
        pytest.param(3, "", ["dcp-6/rest.pt.tmp", "latest.tmp", "state.pt.tmp"], None, id="of the script"),
        pytest.param(3, "", [".tmp-step-00000006/.metadata.tmp"], None, id="of a Checkpointer"),
    ],
)
def test_torch_leaves_one_file_of_a_save_whose_process_is_killed(
    worlds: int, newest: str, names: list[str], left: list[str] | None
) -> None:
    lines = [{"step": 1, "generation": number} for number in range(worlds)]
    run = Run(lines, files=[f"saved/{name}" for name in names], newest=newest)
    assert find_unfinished(run) == [f"saved/{name}" for name in (names if left is None else left)]
