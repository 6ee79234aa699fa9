"""Sessions on a device, where a collective is only queued: what a loss makes of the steps, with NCCL's semantics."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

import pytest

from side_by_side import together
from worker.fake_agent import FakeAgent
from worker.gang_helper import PROGRAMS

pytestmark = pytest.mark.timeout(600)

AT_ONCE = 3  # see `side_by_side`: each has three ranks, which wait for gloo, for the agent, or for the end of a world
PROGRAM = PROGRAMS / "device_program.py"
KILLED = "12:2"
TORCHRUN = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}  # what its agent sets for workers


def train(folder: Path, size: int = 3, /, **variables: str) -> tuple[FakeAgent, dict[int, set[float]]]:
    """The agent, when all ranks have ended, and the norms of the parameters after each step on all ranks."""
    with FakeAgent(PROGRAM, folder, LAST="24", **variables) as agent:
        agent.start(size)
        agent.run()
    return agent, collect_norms(agent)


def grow(folder: Path, size: int, after: int, /, **variables: str) -> tuple[FakeAgent, dict[int, set[float]]]:
    """The same, where one more rank joins after this step."""
    with FakeAgent(PROGRAM, folder, **{"LAST": "24", **variables}) as agent:
        agent.start(size)
        agent.wait(lambda: any(row["step"] >= after for row in agent.rows), "some steps")
        agent.join()
        agent.tell(announced=True)
        agent.run()
    return agent, collect_norms(agent)


def collect_norms(agent: FakeAgent) -> dict[int, set[float]]:
    """The norms of the parameters after each step, on all ranks."""
    norms: dict[int, set[float]] = {}
    for row in agent.rows:
        if "step" in row:
            norms.setdefault(row["step"], set()).add(row["norm"])
    return norms


def check(norms: dict[int, set[float]], right: dict[int, set[float]], exactly: bool = False) -> None:
    assert sorted(norms) == sorted(right)
    for step, found in norms.items():
        (norm,) = right[step]
        assert math.isfinite(norm), "of no use: the undisturbed run diverges"
        assert sorted(found) == ([norm] if exactly else pytest.approx([norm] * len(found), rel=1e-7)), f"step {step}"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The norms after each step of an undisturbed run of a kind of script."""
    found: dict[str, dict[int, set[float]]] = {}
    turn = threading.Lock()

    def run(kind: str) -> dict[int, set[float]]:
        with turn:
            if kind not in found:
                _, found[kind] = train(tmp_path_factory.mktemp(kind), KIND=kind, BACKEND="gloo")
            return found[kind]

    return run


@pytest.mark.parametrize("wants", ["leaves=own", "leaves=garbage", "leaves=garbage,ahead=1"])
@pytest.mark.parametrize("kind", ["plain", "accumulate", "scaler", "two", "virtual", "growth"])
@together
def test_a_step_that_was_not_reduced_is_repeated(tmp_path: Path, undisturbed: Any, kind: str, wants: str) -> None:
    """Nothing raises after an abort: what the buffers hold then is no gradient."""
    agent, norms = train(tmp_path, KIND=kind, KILL=KILLED, FAKE_NCCL=wants)
    assert sorted(agent.ended) == [-9, 0, 0]
    check(norms, undisturbed(kind), exactly=kind in ("virtual", "growth"))


@pytest.mark.parametrize("kind", [pytest.param("closure", marks=pytest.mark.long), "compiled", "stranger"])
@together
def test_no_optimizer_applies_what_was_not_reduced(tmp_path: Path, undisturbed: Any, kind: str) -> None:
    """One that makes its gradients itself, one that is compiled, and one that the session was not given."""
    agent, norms = train(tmp_path, KIND=kind, KILL=KILLED, FAKE_NCCL="leaves=garbage")
    assert sorted(agent.ended) == [-9, 0, 0]
    check(norms, undisturbed("plain"))


@pytest.mark.parametrize("backend", ["gloo", "fakenccl"])
@pytest.mark.parametrize("kind", ["two", "stranger"])
@together
def test_a_loss_in_the_step_in_which_ranks_compare_their_settings(
    tmp_path: Path, undisturbed: Any, kind: str, backend: str
) -> None:
    """They do so before any optimizer has stepped: a loss between two of them would tear the step."""
    variables = {"KIND": kind, "BACKEND": backend, "FAKE_NCCL": "leaves=garbage"}
    agent, norms = train(tmp_path, KILL="15:2:1:backward", **variables)
    assert sorted(agent.ended) == [-9, 0, 0]
    check(norms, undisturbed(kind))


LONG = pytest.mark.long


@pytest.mark.parametrize(
    ("kind", "how", "point"),
    [
        ("late", "async", "backward"),
        ("gan", "", "halfway"),
        ("evaluate", "", "between"),
        ("comm hook", "", "backward"),
        *(pytest.param("late", how, "applied", marks=LONG) for how in ("functional", "stream", "graph")),
        *(pytest.param("late", how, "backward", marks=LONG) for how in ("functional", "stream", "graph")),
        *(pytest.param(kind, "", "forward", marks=LONG) for kind in ("closure", "compiled", "stranger", "groups")),
        pytest.param("gan-scalers", "", "halfway", marks=LONG),
        pytest.param("twice", "", "halfway", marks=LONG),
        pytest.param("evaluate", "", "forward", marks=LONG),
    ],
)
@together
def test_a_processor_that_runs_ahead_applies_nothing_that_was_not_reduced(
    tmp_path: Path, undisturbed: Any, kind: str, how: str, point: str
) -> None:
    """Of the device: all that follows a collective is only queued, until somebody looks at a value."""
    variables = {"KIND": kind, "FAKE_NCCL": "leaves=garbage,ahead=1"} | ({"HOW": how} if how else {})
    agent, norms = train(tmp_path, KILL=f"12:2:1:{point}", **variables)
    assert sorted(agent.ended) == [-9, 0, 0]
    own = ("gan", "gan-scalers", "twice")
    check(norms, undisturbed(kind if kind in own else "two" if kind == "late" else "plain"))


@together
def test_a_step_that_a_cuda_graph_records_is_refused(tmp_path: Path) -> None:
    """Its replays call no hook, and so apply whatever a loss leaves in the gradients."""
    agent, norms = train(tmp_path, 2, KIND="captured")
    assert agent.ended == [1, 1]
    assert "ConfigurationError: a CUDA graph records this step of SGD" in agent.log
    assert not norms


@together
def test_a_graph_with_collectives_of_an_earlier_world_is_refused(tmp_path: Path) -> None:
    """It would use communicators that were aborted, and raise nothing."""
    agent, norms = train(tmp_path, KIND="late", HOW="old graph", KILL=KILLED, FAKE_NCCL="leaves=garbage")
    assert sorted(agent.ended) == [-9, 1, 1]
    assert "ConfigurationError: a CUDA graph is replayed in another world" in agent.log
    assert max(norms) == 11


@pytest.mark.parametrize("backend", ["gloo", "fakenccl"])
@together
def test_an_optimizer_that_steps_in_the_backward_pass_is_refused(tmp_path: Path, backend: str) -> None:
    """A loss in the pass would leave a part of the step applied. When DDP or FSDP2 reduces is of no account."""
    agent, norms = train(tmp_path, 2, KIND="hooks", BACKEND=backend)
    assert agent.ended == [1, 1]
    assert "ConfigurationError: SGD steps inside of the backward pass" in agent.log
    assert "would leave a part of the step applied, which a session of several ranks cannot take back" in agent.log
    assert "gradients are reduced" not in agent.log
    assert not norms


@pytest.mark.parametrize("backend", ["gloo", "fakenccl"])
@together
def test_one_rank_may_step_in_the_backward_pass(tmp_path: Path, backend: str) -> None:
    """No other is lost in its pass. Once another joins, it is refused."""
    agent, norms = train(tmp_path / "alone", 1, KIND="hooks", BACKEND=backend)
    assert agent.ended == [0]
    assert sorted(norms) == list(range(25))
    agent, _ = grow(tmp_path / "joined", 1, 2, LAST="1000000", KIND="hooks", BACKEND=backend)
    assert agent.ended == [1, 1]
    assert "ConfigurationError: SGD steps inside of the backward pass" in agent.log


@pytest.mark.parametrize("backend", ["gloo", "fakenccl"])
@together
def test_a_communication_hook_has_a_new_state_in_each_world(tmp_path: Path, undisturbed: Any, backend: str) -> None:
    """Its state decides what it sends, so a joiner has to begin with the same one as the others."""
    variables = {"KIND": "comm hook", "BACKEND": backend, "FAKE_NCCL": "leaves=garbage", "KILL": "14:0:2:backward"}
    agent, norms = grow(tmp_path, 2, 3, **variables)
    assert sorted(agent.ended) == [-9, 0, 0]
    check(norms, undisturbed("plain"))


@pytest.mark.parametrize("how", ["fp16", "power"])
@together
def test_the_hooks_of_torch_apply_nothing_that_was_not_reduced(tmp_path: Path, how: str) -> None:
    """PowerSGD has a new state in each world, which remembers nothing of a step that a loss has broken."""
    variables = {"KIND": "comm hook", "HOW": how, "FAKE_NCCL": "leaves=garbage"}
    _, right = train(tmp_path / "undisturbed", BACKEND="gloo", **variables)
    agent, norms = train(tmp_path / "disturbed", KILL="12:2:1:forward,15:1:2:backward", **variables)
    assert sorted(agent.ended) == [-9, -9, 0]
    assert sorted(norms) == sorted(right)
    for step, found in norms.items():
        assert len(found) == 1, "all ranks have the same parameters"
        assert found.pop() == pytest.approx(max(right[step]), rel=1e-2), f"step {step}"


@together
def test_a_hook_with_the_state_of_an_earlier_world_is_refused(tmp_path: Path) -> None:
    """What it remembers of the broken step would go into the next one, and a joiner has none of it."""
    variables = {"KIND": "comm hook", "HOW": "one power", "FAKE_NCCL": "leaves=garbage"}
    agent, norms = train(tmp_path, KILL=KILLED, **variables)
    assert sorted(agent.ended) == [-9, 1, 1]
    assert "ConfigurationError: session.model.register_comm_hook() got a PowerSGDState that was registered" in agent.log
    assert max(norms) == 11


@pytest.mark.parametrize("step", [pytest.param(12, id="that-counts"), pytest.param(14, id="that-all-skip")])
@together
def test_a_scaler_learns_nothing_from_gradients_that_were_not_reduced(tmp_path: Path, step: int) -> None:
    """It skips a step whose gradients are not finite, calls no optimizer, and scales less from then on."""
    undisturbed, right = train(tmp_path / "undisturbed", KIND="scaler", BACKEND="gloo")
    agent, norms = train(tmp_path / "disturbed", KIND="scaler", KILL=f"{step}:2", FAKE_NCCL="leaves=nan")
    assert sorted(agent.ended) == [-9, 0, 0]
    check(norms, right)
    assert {(row["step"], row["scale"]) for row in agent.rows} == {
        (row["step"], row["scale"]) for row in undisturbed.rows
    }


@pytest.mark.parametrize("kind", ["hsdp", "copies"])
@pytest.mark.parametrize("wants", ["leaves=own", "leaves=garbage"])
@together
def test_a_sharded_step_that_was_not_reduced_is_repeated(
    tmp_path: Path, undisturbed: Any, kind: str, wants: str
) -> None:
    agent, norms = train(tmp_path, 4, KIND=kind, KILL=KILLED, FAKE_NCCL=wants)
    assert sorted(agent.ended) == [-9, 0, 0, 0]
    check(norms, undisturbed(kind))


@pytest.mark.parametrize("kind", ["plain", "two"])
@together
def test_a_script_that_swallows_the_error_has_not_done_the_step(tmp_path: Path, undisturbed: Any, kind: str) -> None:
    """`except Exception` around a batch: the step was not applied, so it does not count. With gloo a collective
    raises; the agent's word comes later.
    """
    agent, norms = train(tmp_path, KIND=kind, KILL=KILLED, BACKEND="gloo", SWALLOW="batch")
    assert sorted(agent.ended) == [-9, 0, 0]
    check(norms, undisturbed(kind))


@pytest.mark.parametrize(("kind", "point"), [("plain", "forward"), ("twice", "forward"), ("twice", "halfway")])
@together
def test_a_script_that_swallows_the_error_of_a_backward_pass_has_not_done_the_step(
    tmp_path: Path, undisturbed: Any, kind: str, point: str
) -> None:
    """It goes on, and its optimizer steps with gradients that were not reduced."""
    agent, norms = train(tmp_path, KIND=kind, KILL=f"12:2:1:{point}", BACKEND="gloo", SWALLOW="backward")
    assert sorted(agent.ended) == [-9, 0, 0]
    check(norms, undisturbed(kind))


@pytest.mark.parametrize("backend", ["gloo", "fakenccl"])
@together
def test_a_step_with_one_call_of_two_of_an_optimizer_is_no_step(tmp_path: Path, undisturbed: Any, backend: str) -> None:
    agent, norms = train(
        tmp_path, KIND="twice", KILL="12:2:1:halfway,13:1:2:halfway", BACKEND=backend, FAKE_NCCL="leaves=garbage"
    )
    assert sorted(agent.ended) == [-9, -9, 0]
    check(norms, undisturbed("twice"))


@pytest.mark.parametrize("backend", ["gloo", "fakenccl"])
@together
def test_nor_is_the_first_step_in_which_nobody_knows_how_many_calls_there_are(tmp_path: Path, backend: str) -> None:
    """All ranks go back to the last checkpoint, if there is one."""
    agent, norms = train(tmp_path, KIND="twice", KILL="0:2:1:halfway", BACKEND=backend, FAKE_NCCL="leaves=garbage")
    assert sorted(agent.ended) == [-9, 1, 1]
    assert not norms


@pytest.mark.parametrize(
    "sends", ["broadcast", *(pytest.param(one, marks=pytest.mark.long) for one in ("send", "all_to_all"))]
)
@together
def test_a_message_that_has_arrived_in_part_keeps_nobody(tmp_path: Path, undisturbed: Any, sends: str) -> None:
    """gloo waits for the rest of it, whose sender is gone, until the timeout of its group."""
    variables = {"SENDS": sends, "KILL": "12:2:1:message", "BACKEND": "gloo"}
    agent, norms = train(tmp_path, **variables)
    assert sorted(agent.ended) == [-9, 0, 0], "the survivors keep their processes"
    check(norms, undisturbed("plain"))


@pytest.mark.parametrize("backend", ["gloo", "fakenccl"])
@together
def test_a_description_of_the_state_that_has_arrived_in_part_keeps_nobody(
    tmp_path: Path, undisturbed: Any, backend: str
) -> None:
    """It goes over gloo, whatever the backend of the session is."""
    variables = {"BACKEND": backend, "FAKE_NCCL": "leaves=garbage", "DIE_TELLING": "2"}
    agent, norms = grow(tmp_path, 2, 3, **variables)
    assert sorted(agent.ended) == [-9, 0, 0], "the survivor keeps its process"
    check(norms, undisturbed("plain"))


@pytest.mark.parametrize("backend", ["gloo", pytest.param("fakenccl", marks=pytest.mark.long)])
@pytest.mark.parametrize("sends", ["aside", "batch", "functional", "group", "objects", "thread"])
@together
def test_a_loss_frees_any_collective_of_a_script(tmp_path: Path, undisturbed: Any, sends: str, backend: str) -> None:
    agent, norms = train(tmp_path, SENDS=sends, KILL=KILLED, BACKEND=backend, FAKE_NCCL="leaves=garbage")
    assert sorted(agent.ended) == [-9, 0, 0], "the survivors keep their processes"
    check(norms, undisturbed("plain"))


@pytest.mark.parametrize("backend", ["gloo", "fakenccl"])
@together
def test_optimizers_that_step_together_have_one_permission(tmp_path: Path, undisturbed: Any, backend: str) -> None:
    """The loss is known when the first one has stepped, and all gradients of the step were reduced before."""
    variables = {"KILL": "12:2:1:applied", "REST": "0.7", "BACKEND": backend, "FAKE_NCCL": "leaves=garbage"}
    agent, norms = train(tmp_path, KIND="two", **variables)
    assert sorted(agent.ended) == [-9, 0, 0]
    check(norms, undisturbed("two"))


@pytest.mark.parametrize(
    ("backend", "point"), [("fakenccl", "backward"), ("fakenccl", "applied"), ("gloo", "backward")]
)
@together
def test_an_optimizer_does_not_apply_what_was_only_waited_for_after_another_one(
    tmp_path: Path, undisturbed: Any, backend: str, point: str
) -> None:
    """The collective was begun before the first one stepped, whose permission says nothing of it."""
    agent, norms = train(tmp_path, KIND="late", KILL=f"12:2:1:{point}", BACKEND=backend, FAKE_NCCL="leaves=garbage")
    assert sorted(agent.ended) == [-9, 0, 0]
    check(norms, undisturbed("two"))


@pytest.mark.parametrize("point", ["backward", "applied"])
@pytest.mark.parametrize(
    ("how", "backend"),
    [("functional", "fakenccl"), ("functional", "gloo"), ("stream", "fakenccl"), ("graph", "fakenccl")],
)
@together
def test_nor_what_came_to_it_where_nobody_calls_wait(
    tmp_path: Path, undisturbed: Any, how: str, backend: str, point: str
) -> None:
    """As a functional collective, by a stream of the script's own, or by the replay of a CUDA graph."""
    variables = {"KIND": "late", "HOW": how, "BACKEND": backend, "FAKE_NCCL": "leaves=garbage"}
    agent, norms = train(tmp_path, KILL=f"12:2:1:{point}", **variables)
    assert sorted(agent.ended) == [-9, 0, 0]
    check(norms, undisturbed("two"))


@pytest.mark.parametrize(("where", "kill"), [("step", "12:2:1:applied"), ("epochs", "19:2:1:between")])
@pytest.mark.parametrize("how", ["buffers", "rate", "log"])
@together
def test_what_came_behind_the_optimizers_is_right_or_taken_back(
    tmp_path: Path, how: str, where: str, kill: str
) -> None:
    """Such as buffers that are averaged, or a reduced loss that a scheduler follows. A step in which it was counts."""
    variables = {"KIND": "trail", "HOW": how, "WHERE": where, "FAKE_NCCL": "leaves=garbage"}
    _, right = train(tmp_path / "undisturbed", BACKEND="gloo", **variables)
    agent, norms = train(tmp_path / "disturbed", KILL=kill, **variables)
    assert sorted(agent.ended) == [-9, 0, 0], "the survivors keep their processes"
    check_passes(agent)
    assert {row["best"] for row in agent.rows} <= {float("-inf"), 1.0}
    last = int(kill.partition(":")[0]) if how == "rate" else 24  # a scheduler has one value less then
    check({step: norms[step] for step in range(last + 1)}, {step: right[step] for step in range(last + 1)})
    assert [len(norms[step]) for step in range(25)] == [1] * 25


@pytest.mark.parametrize(("where", "kill"), [("step", "12:2:1:applied"), ("epochs", "19:2:1:between")])
@together
def test_parameters_that_came_behind_the_optimizers_of_a_lost_world_are_no_state(
    tmp_path: Path, undisturbed: Any, where: str, kill: str
) -> None:
    """Nobody keeps copies of parameters that such a message does not change otherwise: back to the last checkpoint."""
    variables = {"KIND": "trail", "HOW": "parameters", "WHERE": where, "FAKE_NCCL": "leaves=garbage"}
    agent, norms = train(tmp_path, KILL=kill, **variables)
    assert sorted(agent.ended) == [-9, 1, 1]
    assert "going back to the last checkpoint" in agent.log
    right = undisturbed("plain")
    check(norms, {step: right[step] for step in range(12 if where == "step" else 20)})


@together
def test_a_script_that_a_value_of_a_lost_world_has_ended_is_not_done(tmp_path: Path) -> None:
    """An evaluation outside of any block has reached a goal, or so it seems, and the script ends without an error."""
    variables = {"KIND": "evaluate", "WHERE": "goal", "FAKE_NCCL": "leaves=garbage"}
    agent, norms = train(tmp_path, KILL="12:2:1:between", **variables)
    assert sorted(agent.ended) == [-9, 1, 1]
    assert max(norms) == 12
    assert "a member was lost behind the last step" in agent.log.lower()


@pytest.mark.parametrize("backend", ["gloo", "fakenccl"])
@together
def test_a_scheduler_follows_no_value_of_a_lost_world_between_two_steps(tmp_path: Path, backend: str) -> None:
    """In a block of its own, of which nothing counts then. The value is 1 after each step, and more in a lost world."""
    variables = {"KIND": "trail", "HOW": "rate", "FAKE_NCCL": "leaves=garbage"}
    agent, norms = train(tmp_path, BACKEND=backend, KILL="12:2:1:between", **variables)
    assert sorted(agent.ended) == [-9, 0, 0]
    rates = {(row["step"], row["best"]) for row in agent.rows}
    assert {best for step, best in rates if step > 0} == {1.0}
    assert max(norms) == 24


@pytest.mark.parametrize("swallows", [False, True])
@pytest.mark.parametrize("backend", ["gloo", "fakenccl"])
@together
def test_a_step_of_which_one_optimizer_has_applied_its_part_is_taken_back(
    tmp_path: Path, undisturbed: Any, backend: str, swallows: bool
) -> None:
    """In a GAN, the other one has a backward pass of its own, which the loss breaks."""
    variables = {"BACKEND": backend, "FAKE_NCCL": "leaves=garbage"} | ({"SWALLOW": "batch"} if swallows else {})
    agent, norms = train(tmp_path, KIND="gan", KILL="12:2:1:halfway", **variables)
    assert sorted(agent.ended) == [-9, 0, 0]
    check(norms, undisturbed("gan"))


@pytest.mark.parametrize("backend", ["gloo", "fakenccl"])
@pytest.mark.parametrize("step", [pytest.param(6, id="the-first-one-skips"), pytest.param(12, id="both-step")])
@together
def test_an_optimizer_with_a_scaler_of_its_own_that_was_still_to_come_has_not_skipped(
    tmp_path: Path, undisturbed: Any, backend: str, step: int
) -> None:
    """The scaler of the first one has been updated, which says nothing of the second one."""
    variables = {"BACKEND": backend, "FAKE_NCCL": "leaves=garbage"}
    agent, norms = train(tmp_path, KIND="gan-scalers", KILL=f"{step}:2:1:halfway", **variables)
    assert sorted(agent.ended) == [-9, 0, 0]
    check(norms, undisturbed("gan-scalers"))


@pytest.mark.parametrize("backend", ["gloo", "fakenccl"])
@pytest.mark.parametrize(
    ("place", "point"),
    [("first", "forward"), pytest.param("middle", "applied", marks=pytest.mark.long), ("last", "applied")],
)
@together
def test_a_scheduler_makes_each_step_once(tmp_path: Path, backend: str, place: str, point: str) -> None:
    """A loss breaks the step off before or after its scheduler, which changes the learning rate and the momentum."""
    variables = {"KIND": "schedule", "SCHEDULE": place, "FAKE_NCCL": "leaves=garbage"}
    _, undisturbed = train(tmp_path / "undisturbed", BACKEND="gloo", **variables)
    agent, norms = train(tmp_path / "disturbed", BACKEND=backend, KILL=f"12:2:1:{point}", **variables)
    assert sorted(agent.ended) == [-9, 0, 0]
    check(norms, undisturbed)


ERRORS = [
    "ValueError",
    "AssertionError",
    "IndexError",
    "StopIteration",
    "KeyError",
    "RuntimeError",
    "OSError",
    "SystemExit",
]
FEW = ("ValueError", "StopIteration", "SystemExit")
RAISED = [one if one in FEW else pytest.param(one, marks=pytest.mark.long) for one in ERRORS]


@pytest.mark.parametrize("backend", ["gloo", "fakenccl"])
@pytest.mark.parametrize("error", RAISED)
@together
def test_whatever_a_script_raises_at_what_a_loss_has_left_is_no_mistake_of_its_own(
    tmp_path: Path, undisturbed: Any, backend: str, error: str
) -> None:
    """A check of the gradients, or the script's own words instead of the error of a collective, or `sys.exit()`."""
    agent, norms = train(tmp_path, KILL=KILLED, BACKEND=backend, FAKE_NCCL="leaves=garbage", RAISES=error)
    assert sorted(agent.ended) == [-9, 0, 0]
    assert agent.log.count("something is wrong\n") == 2, "both survivors have met it"
    causes = [one["error"] for one in agent.history if one.get("error")]
    assert causes
    assert not [one for one in causes if "backward pass has failed" in one or "loss has diverged" in one], causes
    check(norms, undisturbed("plain"))


@pytest.mark.long
@together
def test_memory_that_does_not_suffice_for_what_a_loss_has_left_is_no_mistake_either(
    tmp_path: Path, undisturbed: Any
) -> None:
    """A script makes room for as many values as other ranks have told."""
    agent, norms = train(tmp_path, KILL=KILLED, FAKE_NCCL="leaves=garbage", RAISES="OutOfMemoryError")
    assert sorted(agent.ended) == [-9, 0, 0]
    assert agent.log.count("something is wrong\n") == 2
    check(norms, undisturbed("plain"))


@together
def test_a_script_that_a_signal_ends_in_a_lost_world_ends(tmp_path: Path) -> None:
    """The signal is sent once: nobody would ask the script again in the next world."""
    variables = {"FAKE_NCCL": "leaves=garbage", "RAISES": "SIGUSR2"}
    agent, norms = train(tmp_path, KILL=KILLED, **variables)
    assert sorted(agent.ended) == [-9, 3, 3]
    assert max(norms) == 11


@pytest.mark.parametrize("error", ["ValueError", "SystemExit"])
@pytest.mark.parametrize("backend", ["gloo", "fakenccl"])
@together
def test_a_mistake_of_the_script_in_a_whole_world_ends_it(tmp_path: Path, backend: str, error: str) -> None:
    agent, norms = train(tmp_path, BACKEND=backend, RAISES=f"at:12:{error}")
    assert agent.ended == [1, 1, 1]
    assert max(norms) == 11
    assert agent.log.count("the loss has diverged\n") == 3


@pytest.mark.parametrize(("backend", "swallows"), [("gloo", ""), ("gloo", "evaluation"), ("fakenccl", "")])
@together
def test_what_is_computed_between_two_steps_is_right_or_known_to_be_wrong(
    tmp_path: Path, undisturbed: Any, backend: str, swallows: str
) -> None:
    """Also if the script catches the error of its collective, before the agent's word comes."""
    variables = {"BACKEND": backend, "FAKE_NCCL": "leaves=garbage", "SWALLOW": swallows}
    agent, norms = train(tmp_path, KIND="evaluate", KILL="12:2:1:between", **variables)
    assert sorted(agent.ended) == [-9, 0, 0]
    check(norms, undisturbed("plain"))
    found = [row for row in agent.rows if "found" in row]
    assert [row for row in found if row["found"] != row["size"]] == []
    assert {row["after"] for row in found} >= {*range(24)} - {12}
    check_passes(agent)


@together
def test_what_was_only_begun_between_two_steps_is_known_to_be_wrong(tmp_path: Path, undisturbed: Any) -> None:
    """The script waits for it after the block, whose end says that all values of it are right."""
    variables = {"FAKE_NCCL": "leaves=garbage", "WHERE": "later"}
    agent, norms = train(tmp_path, KIND="evaluate", KILL="12:2:1:between", **variables)
    assert sorted(agent.ended) == [-9, 0, 0]
    check(norms, undisturbed("plain"))
    found = [row for row in agent.rows if "found" in row]
    assert [row for row in found if row["found"] != row["size"]] == []


@pytest.mark.parametrize("backend", ["gloo", "fakenccl"])
@together
def test_an_exit_at_what_a_loss_has_left_between_two_steps_ends_nobody(
    tmp_path: Path, undisturbed: Any, backend: str
) -> None:
    """An evaluation that stops the script at a value that is none."""
    variables = {"BACKEND": backend, "FAKE_NCCL": "leaves=garbage", "RAISES": "evaluation:SystemExit"}
    variables |= {"SWALLOW": "evaluation"} if backend == "gloo" else {}
    agent, norms = train(tmp_path, KIND="evaluate", KILL="12:2:1:between", **variables)
    assert sorted(agent.ended) == [-9, 0, 0]
    assert agent.log.count("something is wrong\n") == 2, "both survivors have met it"
    check(norms, undisturbed("plain"))


def check_passes(agent: FakeAgent) -> None:
    counts = {(row["step"], row["passes"]) for row in agent.rows if "passes" in row}
    assert [(step, passes) for step, passes in counts if passes != step + 1] == []


@pytest.mark.parametrize(("backend", "where"), [("gloo", "step"), ("fakenccl", "step"), ("fakenccl", "outside")])
@together
def test_buffers_that_were_not_sent_are_taken_back(tmp_path: Path, undisturbed: Any, backend: str, where: str) -> None:
    """DDP sends them before each pass, also after the optimizer has stepped, and in an evaluation."""
    variables = {"BACKEND": backend, "FAKE_NCCL": "leaves=garbage", "WHERE": where}
    agent, norms = train(tmp_path, KIND="evaluate", KILL="12:2:1:between", **variables)
    assert sorted(agent.ended) == [-9, 0, 0]
    check(norms, undisturbed("plain"))
    check_passes(agent)


@pytest.mark.parametrize("dump", ["0", "15000"])
@together
def test_the_watchdog_of_torch_ends_nobody(tmp_path: Path, undisturbed: Any, dump: str) -> None:
    """A network tells it of a dead peer before the agent does. It would sleep for four times `dump` first."""
    variables = {**TORCHRUN, "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": dump}
    agent, norms = train(tmp_path, KILL=KILLED, FAKE_NCCL="notices=0.02", **variables)
    assert sorted(agent.ended) == [-9, 0, 0], "the survivors keep their processes"
    check(norms, undisturbed("plain"))


@pytest.mark.parametrize("name", ["TORCH_DISTRIBUTED_DEBUG", "TORCH_NCCL_DESYNC_DEBUG"])
@together
def test_nor_does_it_if_torch_is_to_check_the_collectives(tmp_path: Path, undisturbed: Any, name: str) -> None:
    """Whoever looks for a mistake sets one of these, and torch then handles errors though it was told not to."""
    more = {name: "DETAIL" if name == "TORCH_DISTRIBUTED_DEBUG" else "1"}
    agent, norms = train(tmp_path, KILL=KILLED, FAKE_NCCL="notices=0.02", **TORCHRUN, **more)
    assert sorted(agent.ended) == [-9, 0, 0], "the survivors keep their processes"
    check(norms, undisturbed("plain"))


@pytest.mark.parametrize(
    ("kind", "wants"),
    [
        pytest.param("plain", "abort=300", id="an abort that takes long"),
        pytest.param("groups", "", id="two communicators that block each other"),
        pytest.param("plain", "shutdown=raises", id="a destroy that raises"),
        pytest.param("plain", "shutdown=hangs", id="a destroy that hangs"),
    ],
)
@together
def test_nobody_waits_for_the_end_of_a_lost_world(tmp_path: Path, undisturbed: Any, kind: str, wants: str) -> None:
    agent, norms = train(tmp_path, KIND=kind, KILL=KILLED, FAKE_NCCL=wants)
    assert sorted(agent.ended) == [-9, 0, 0]
    check(norms, undisturbed("plain"))


@together
def test_a_world_without_notice_is_not_waited_for_either(tmp_path: Path) -> None:
    """An announced end: the old communicators are destroyed beside the new world."""
    with FakeAgent(PROGRAM, tmp_path, LAST="100000", FAKE_NCCL="shutdown=hangs") as agent:
        agent.start(2)
        for generation in (1, 2):
            agent.wait(lambda: any(row["generation"] == agent.generation for row in agent.rows), "a step")
            agent.tell(announced=True)
            agent.form()
            assert agent.generation == generation + 1
        agent.wait(lambda: any(row["generation"] == 3 for row in agent.rows), "a step of the third world")


@together
def test_a_loss_while_communicators_are_made_frees_the_others(tmp_path: Path) -> None:
    """Nothing frees a thread that waits for a peer to make its communicator: it is not the main thread in a step."""
    with FakeAgent(PROGRAM, tmp_path, LAST="24", FAKE_NCCL="dies=2") as agent:
        agent.start(3)
        agent.wait(lambda: any(row["step"] >= 3 for row in agent.rows), "three steps")
        agent.tell(announced=True)
        agent.form()
        agent.run()
    assert sorted(agent.ended) == [-9, 0, 0]
    assert max(row["step"] for row in agent.rows if row["generation"] == 3) == 24


@together
def test_a_group_for_another_device_needs_no_communicator(tmp_path: Path, undisturbed: Any) -> None:
    """Such as `dist.new_group(backend="cpu:gloo")` beside a GPU, which a script makes when a world begins."""
    agent, norms = train(tmp_path, KIND="other device", KILL=KILLED)
    assert sorted(agent.ended) == [-9, 0, 0]
    check(norms, undisturbed("plain"))


@together
def test_nor_is_it_the_main_thread_for_groups_that_a_script_makes_when_a_world_begins(
    tmp_path: Path, undisturbed: Any
) -> None:
    """The first collective in them, in the first step, would make their communicators."""
    agent, norms = train(tmp_path, KIND="groups", KILL="0:2:1:forward", FAKE_NCCL="leaves=garbage")
    assert sorted(agent.ended) == [-9, 0, 0], "the survivors keep their processes"
    check(norms, undisturbed("plain"))


@pytest.mark.parametrize(
    ("how", "kill"),
    [
        pytest.param("", "2:0:1:loading", id="of-a-checkpoint"),
        pytest.param("again", "12:2:1:forward,2:0:2:loading", id="in-each-world"),
    ],
)
@together
def test_parameters_that_a_script_has_got_in_the_beginning_of_a_lost_world_are_no_state(
    tmp_path: Path, how: str, kill: str
) -> None:
    """In `on_world`, from rank 0, which dies meanwhile: back to the last checkpoint, and not on from anything."""
    variables = {"KIND": "loads", "HOW": how, "FAKE_NCCL": "leaves=garbage"}
    _, right = train(tmp_path / "undisturbed", BACKEND="gloo", **variables)
    agent, norms = train(tmp_path / "disturbed", 4, KILL=kill, **variables)
    check(norms, {step: right[step] for step in norms})
    assert sorted(agent.ended) == ([-9, -9, 1, 1] if how else [-9, 1, 1, 1])
    assert "going back to the last checkpoint" in agent.log
    assert max(norms, default=-1) == (11 if how else -1)


@together
def test_a_script_does_not_begin_in_a_world_that_was_lost_while_it_was_entered(
    tmp_path: Path, undisturbed: Any
) -> None:
    """What it does between the session and its first step would fail there, and end the process."""
    agent, norms = train(tmp_path, KIND="meets", KILL="0:2:1:loading", BACKEND="gloo")
    assert sorted(agent.ended) == [-9, 0, 0]
    check(norms, undisturbed("plain"))


@pytest.mark.parametrize("how", ["", "again"], ids=["of-a-checkpoint", "in-each-world"])
@together
def test_shards_that_a_script_has_got_in_the_beginning_of_a_lost_world_are_no_state(
    tmp_path: Path, undisturbed: Any, how: str
) -> None:
    """The same with two copies of a sharded model: rank 2 gets the shards of rank 0, which dies meanwhile."""
    variables = {"KIND": "hsdp loads", "HOW": how, "LAST": "24", "FAKE_NCCL": "leaves=garbage"}
    with FakeAgent(PROGRAM, tmp_path, KILL=f"2:0:{2 if how else 1}:loading", **variables) as agent:
        agent.start(4)
        if how:
            agent.wait(lambda: any(row["step"] >= 6 for row in agent.rows), "seven steps")
            agent.tell(announced=True)
        agent.run()
    norms = collect_norms(agent)
    check(norms, {step: undisturbed("hsdp")[step] for step in norms})
    assert sorted(agent.ended) == [-9, 1, 1, 1]
    assert "going back to the last checkpoint" in agent.log
    assert bool(norms) is bool(how)


@pytest.mark.parametrize("wants", ["leaves=own", "leaves=garbage"])
@together
def test_shards_that_were_not_gathered_are_no_state(tmp_path: Path, undisturbed: Any, wants: str) -> None:
    """A member dies at the announced end of a world, while all gather the model: training goes on from copies."""
    with FakeAgent(PROGRAM, tmp_path, LAST="24", KIND="copies", DIE_PACKING="2", FAKE_NCCL=wants) as agent:
        agent.start(3)
        agent.wait(lambda: any(row["step"] >= 6 for row in agent.rows), "seven steps")
        agent.tell(announced=True)
        agent.run()
    assert sorted(agent.ended) == [-9, 0, 0]
    norms = collect_norms(agent)
    check(norms, undisturbed("copies"))


@pytest.mark.parametrize("backend", ["gloo", "fakenccl"])
@together
def test_a_loss_breaks_a_save_under_way_and_not_the_training(tmp_path: Path, undisturbed: Any, backend: str) -> None:
    """torch.distributed.checkpoint saves in a thread, whose collectives wait for the member that is lost."""
    variables = {"BACKEND": backend, "FAKE_NCCL": "leaves=garbage"}
    agent, norms = train(tmp_path, KIND="saves", KILL="11:2:1:between", **variables)
    assert sorted(agent.ended) == [-9, 0, 0], "the survivors keep their processes"
    check(norms, undisturbed("plain"))
    saved = {int(one.parent.name.partition("-")[2]) for one in tmp_path.glob("saved-*/.metadata")}
    assert saved >= {3, 7, 15, 19}, "those of both worlds"


@pytest.mark.parametrize("backend", ["gloo", "fakenccl"])
@together
def test_a_world_that_ends_in_the_last_step_of_a_script_has_made_it(
    tmp_path: Path, undisturbed: Any, backend: str
) -> None:
    """A job is suspended just then: the step counts on all ranks, and is not made again if it goes on."""
    with FakeAgent(PROGRAM, tmp_path, LAST="24", BACKEND=backend, HOLD="yes") as agent:
        agent.start(3)
        agent.wait(lambda: sum(row["step"] == 23 for row in agent.rows) == 3, "the last step but one")
        agent.tell(announced=True)
        (tmp_path / "told").touch()
        agent.wait(lambda: len(agent.idle) + 3 - len(agent.living) >= 3, "all ranks to leave the world, or to end")
        assert sum(row["step"] == 24 for row in agent.rows) == 3
        agent.run()
    assert agent.ended == [0, 0, 0]
    norms = collect_norms(agent)
    check(norms, undisturbed("plain"))
    assert len(agent.rows) == 3 * 25


@pytest.mark.parametrize("backend", ["gloo", "fakenccl"])
@together
def test_the_connections_of_a_script_outlive_a_world(tmp_path: Path, backend: str) -> None:
    """Only the world's own are shut down after a loss, and not those that a script opens in `on_world`."""
    agent, norms = train(tmp_path, KIND="connection", KILL=KILLED, BACKEND=backend)
    assert max(norms) == 24
    assert {row["ended"] for row in agent.rows} == {0}
