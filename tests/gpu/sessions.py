"""Checks of sessions: what a loss, a change, and a lost source cost, and whether the parameters stay right."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu import rig
from gpu.programs import training
from gpu.report import Report
from gpu.rig import Gang

NEXT_STEP = 0.35  # seconds from the telling of a loss until the survivors have done another step
_CLOSE = 1e-9
_POINTS = ("forward", "stop", "backward")
_DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
Row = Mapping[str, Any]


def find_differences(rows: Sequence[Row], right: Sequence[tuple[float, float]]) -> list[str]:
    """The steps whose parameters are not those of the reference. Pure."""
    found = []
    for row in rows:
        if not 0 <= row["step"] < len(right):
            continue
        for name, value in zip(("norm", "weighted"), right[row["step"]], strict=True):
            if not abs(row[name] - value) <= _CLOSE * abs(value):
                found.append(
                    f"generation {row['generation']} step {row['step']}: {name} {row[name]!r}, right {value!r}"
                )
    return found


def find_other_states(rows: Sequence[Row]) -> list[str]:
    """Where a world did not begin with the bits of the step that it says it goes on from. Pure.

    That step is the last one committed before; every rank that has one of the same step has the same bits.
    """
    found = []
    for row in rows:
        if row["event"] != "world" or row["step"] < 0:
            continue
        before = [one for one in rows if one["event"] == "step" and one["step"] == row["step"] and one["t"] <= row["t"]]
        bits = {one["bits"] for one in before}
        if bits and bits != {row["bits"]}:
            found.append(
                f"generation {row['generation']} rank {row['rank']} begins step {row['step'] + 1} from another state"
            )
    return found


def find_first_steps(rows: Sequence[Row]) -> dict[int, int]:
    """The step that each generation did first. Pure."""
    found: dict[int, int] = {}
    for row in rows:
        if row["event"] == "step":
            found[row["generation"]] = min(row["step"], found.get(row["generation"], row["step"]))
    return found


def _judge(check: Report, world: Gang, clip: float | None = None) -> None:
    world.end()
    rows = world.rows()
    steps = [row for row in rows if row["event"] == "step"]
    most = max(row["step"] for row in steps)
    right = list(training.reference(world.settings["width"], most + 1, clip))
    wrong = find_differences(steps, right)
    check.measure(steps=len(steps), lastStep=most, wrongSteps=len(wrong))
    check.expect(not wrong, "every committed step has the parameters of the reference, to 1e-9", wrong[:3])
    others = find_other_states(rows)
    check.expect(not others, "every world begins with the bits of its last committed step", others[:3])


def _lose_some(check: Report, world: Gang, points: Sequence[str], step: int = 8) -> None:
    """Lose the last member again and again; one that waits takes its place."""
    spares = [world.spare() for _ in points[1:]]
    changes, seconds, idle, joined = [], [], [], []
    for number, point in enumerate(points):
        world.await_step(step, 60.0)
        lost = world.lose(world.members[-1], point)
        changes.append(lost | {"point": point})
        seconds.append(lost["next"])
        idle.append(lost["idle"])
        check.measure(losses=changes)
        step = max(lost["steps"]) + 4
        if number < len(spares):
            world.await_step(step)
            joined.append(world.change([spares[number]]))
            step = max(row["step"] for row in world.steps()) + 5
    world.await_step(step)
    check.measure(secondsUntilNextStep=seconds, secondsUntilIdle=idle, secondsOfJoin=joined)
    check.goal(
        "seconds from the telling of a loss to the survivors' next step, at the median", _median(seconds), NEXT_STEP
    )


def _median(values: Sequence[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None


def killed(check: Report, folder: Path) -> None:
    """Three ranks in torchrun's environment; the last one is killed or paused in a step, and replaced, three times."""
    with rig.gang(folder, "train.py", {"width": 512}) as world:
        world.start(3)
        _lose_some(check, world, _POINTS)
        _judge(check, world)


def _late(check: Report, folder: Path, kind: str) -> None:
    """Two optimizers, and what the second one needs comes from the other ranks while the first one steps."""
    with rig.gang(folder, "habits.py", {"kind": kind, "width": 256}) as world:
        world.start(3)
        _lose_some(check, world, ("backward", "optimizer"))
        _judge(check, world)


def functional(check: Report, folder: Path) -> None:
    """As a functional collective, for which nothing in Python waits."""
    _late(check, folder, "functional")


def stream(check: Report, folder: Path) -> None:
    """In a stream of the script's own."""
    _late(check, folder, "stream")


def graph(check: Report, folder: Path) -> None:
    """By the replay of a CUDA graph, which is captured anew in each world."""
    _late(check, folder, "graph")


def trail(check: Report, folder: Path) -> None:
    """Ranks are lost while others send what follows the optimizers: a buffer, and a value that a scheduler follows."""
    with rig.gang(folder, "habits.py", {"kind": "trail", "width": 256}) as world:
        world.start(3)
        _lose_some(check, world, ("optimizer", "backward", "optimizer"))
        _judge(check, world)
        states = world.find("world")
    wrong = [row for row in states if row["kept"] != 1.0 or row["best"] not in (0.0, 1.0)]
    check.measure(worlds=len(states), wrongStates=len(wrong))
    check.expect(not wrong, "what followed the optimizers of a lost world is no part of the next one", wrong[:2])


def power(check: Report, folder: Path) -> None:
    """PowerSGD, with a new state in each world. It changes what a step does: ranks are compared with each other."""
    with rig.gang(folder, "habits.py", {"kind": "power", "width": 256}) as world:
        world.start(3)
        _lose_some(check, world, ("backward", "forward"))
        world.end()
        rows = world.rows()
    steps = [row for row in rows if row["event"] == "step"]
    uneven = sorted({row["step"] for row in steps for one in steps if _differ(row, one)})
    most = max(row["norm"] for row in steps)
    check.measure(steps=len(steps), unevenSteps=len(uneven), largestNorm=round(most, 3))
    check.expect(not uneven, "all ranks have the same bits after each step", uneven[:3])
    check.expect(most < 100, "and no step has applied what was not reduced", most)
    others = find_other_states(rows)
    check.expect(not others, "every world begins with the bits of its last committed step", others[:3])


def capturable(check: Report, folder: Path) -> None:
    """An optimizer whose numbers are all on the device, in a stream of its own; the result of one undisturbed process,
    to 1e-7: Adam divides by what is small.
    """
    settings = {"kind": "capturable", "width": 256}
    with rig.gang(folder, "habits.py", settings) as alone:
        with rig.gang(folder, "habits.py", settings) as world:
            alone.start(1)
            world.start(3)
            _lose_some(check, world, ("backward", "optimizer"))
            rows = world.rows()
        most = max(row["step"] for row in rows if row["event"] == "step")
        alone.await_step(most, 60.0)
        right = {row["step"]: row["norm"] for row in alone.steps()}
    steps = [row for row in rows if row["event"] == "step"]
    wrong = [row for row in steps if not abs(row["norm"] - right[row["step"]]) <= 1e-7 * right[row["step"]]]
    check.measure(steps=most + 1, wrongSteps=len(wrong))
    check.expect(not wrong, "every committed step has the parameters of one undisturbed process, to 1e-7", wrong[:3])
    others = find_other_states(rows)
    check.expect(not others, "every world begins with the bits of its last committed step", others[:3])


def scaler_killed(check: Report, folder: Path) -> None:
    """The same with gradients that are accumulated, scaled and clipped."""
    settings = {"width": 256, "scaler": True, "clip": 0.05, "micro": 8}
    with rig.gang(folder, "train.py", settings) as world:
        world.start(3)
        _lose_some(check, world, ("backward", "forward"))
        _judge(check, world, clip=0.05)


def virtual_killed(check: Report, folder: Path) -> None:
    """The same with virtual ranks."""
    settings = {"width": 256, "virtual": 6, "dtype": "float32"}
    with _beside_one(check, folder, "train.py", settings, ("forward", "backward")):
        pass


def vision(check: Report, folder: Path) -> None:
    """A CNN as people train it; ranks are killed, and then all of them: it goes on from its checkpoint with fewer."""
    with _beside_one(check, folder, "everyday.py", {"kind": "vision"}, ("backward", "forward")) as world:
        most = max(row["step"] for row in world.steps())
        world.end()
        world.start(2)
        world.await_step(most + 3, 60.0)
        first = find_first_steps(world.rows())[world.generation]
        check.measure(lastStepBefore=most, firstStepAfter=first)
        check.expect(most - 10 <= first <= most + 1, "a restart goes on from the newest checkpoint", first)


def gan(check: Report, folder: Path) -> None:
    """Two models, two optimizers, and a GradScaler that skips steps; one part is trained later."""
    with _beside_one(check, folder, "everyday.py", {"kind": "gan"}, ("optimizer", "backward", "forward")) as world:
        world.await_step(max(30, max(row["step"] for row in world.steps()) + 3))


@contextlib.contextmanager
def _beside_one(
    check: Report, folder: Path, program: str, settings: dict[str, Any], points: Sequence[str]
) -> Iterator[Gang]:
    """Virtual ranks lose some: the bits are those of one process that nobody disturbs."""
    with rig.gang(folder, program, settings, **_DETERMINISTIC) as alone:
        with rig.gang(folder, program, settings, **_DETERMINISTIC) as world:
            alone.start(1)
            world.start(3)
            _lose_some(check, world, points)
            yield world
            rows = world.rows()
        most = max(row["step"] for row in rows if row["event"] == "step")
        alone.await_step(most, 60.0)
        right = {row["step"]: row["bits"] for row in alone.steps()}
    wrong = [row for row in rows if row["event"] == "step" and row["bits"] != right[row["step"]]]
    first = [f"generation {row['generation']} step {row['step']}" for row in wrong[:3]]
    check.measure(steps=most + 1, wrongSteps=len(wrong), changes=len(set(right.values())))
    check.expect(not wrong, "every committed step has the bits of one undisturbed process", first)
    check.expect(len(set(right.values())) > most / 2, "and the steps change them", len(set(right.values())))
    others = find_other_states(rows)
    check.expect(not others, "every world begins with the bits of its last committed step", others[:3])


def compiled(check: Report, folder: Path) -> None:
    """A compiled transformer under DDP with accumulated gradients; the result of one undisturbed process, to 1e-9."""
    with rig.gang(folder, "everyday.py", {"kind": "compiled"}) as alone:
        with rig.gang(folder, "everyday.py", {"kind": "compiled"}) as world:
            alone.start(1)
            world.start(3)
            _lose_some(check, world, ("backward",))
            rows = world.rows()
        most = max(row["step"] for row in rows if row["event"] == "step")
        alone.await_step(most, 60.0)
        right = {row["step"]: (row["norm"], row["weighted"]) for row in alone.steps()}
    steps = [row for row in rows if row["event"] == "step"]
    wrong = find_differences(steps, [right[step] for step in range(most + 1)])
    check.measure(steps=most + 1, wrongSteps=len(wrong), backend=alone.find("compiler")[0]["backend"])
    check.expect(not wrong, "every committed step has the parameters of one undisturbed process, to 1e-9", wrong[:3])


def source_dies(check: Report, folder: Path) -> None:
    """Two train, two join, and the source of the state dies in its transfer: after some, half, almost all bytes."""
    parts = (0.01, 0.5, 0.95)
    settings = {"width": 256 if rig.DRY else 4000, "dtype": "float32", "pause": 0.02}
    with rig.gang(folder, "train.py", settings) as world:
        world.start(2)
        spares = [world.spare() for _ in range(2 * len(parts))]
        rounds: list[dict[str, Any]] = []
        step = 6
        for part in parts:
            world.await_step(step, 60.0)
            rig.wait(lambda: all(map(world.is_connected, spares)), "those who join", 40)
            rounds.append(_lose_source(world, [spares.pop(), spares.pop()], part))
            check.measure(rounds=rounds)
            step = rounds[-1]["step"] + 4
            world.await_step(step)
        rows = world.rows()
    steps = [row for row in rows if row["event"] == "step"]
    firsts = find_first_steps(rows)
    for one in rounds:
        generation, part = one["generation"], one["part"]
        expected = one["step"] + 1
        text = f"after a source that died at {part:.0%} of its state, training goes on from the last step"
        check.expect(firsts.get(generation) == expected, text, f"step {firsts.get(generation)}, not {expected}")
    others = find_other_states(rows)
    check.expect(not others, "and from the survivor's bits, on every rank", others[:3])
    uneven = sorted({row["step"] for row in steps for one in steps if _differ(row, one)})
    check.expect(not uneven, "all ranks have the same bits after each step", uneven[:3])


def _differ(one: Row, other: Row) -> bool:
    same = one["step"] == other["step"] and one["generation"] == other["generation"]
    return bool(same and one["bits"] != other["bits"])


def _lose_source(world: Gang, joiners: Sequence[subprocess.Popen[bytes]], part: float) -> dict[str, Any]:
    source = world.members[0]
    (world.folder / f"die-{source.pid}").write_text(f"sending {part}")
    world.call_over(announced=True)
    world.await_idle(world.members)
    step = max(world.idle[one.pid]["step"] for one in world.members)
    world.form([*world.members, *joiners])
    died_sending = True
    try:
        rig.wait(lambda: source.poll() is not None, "the source to die in its transfer", 4.0)
    except rig.LateError:
        died_sending = False  # it went by a way that this does not see, or has been done
        source.kill()
        source.wait()
    # Others may die with it in a step that was begun; nobody else may.
    rest = [one for one in world.members if one is not source]
    time.sleep(rig.DETECTION)
    world.members = rest
    told = world.call_over(announced=False)
    world.await_idle(rest)
    says = [world.idle[one.pid]["step"] for one in rest]
    step = max(step, *says)
    world.form(rest)
    world.await_step(step + 1)
    found = {"part": part, "diedSending": died_sending, "step": step, "survivorsSay": says}
    return found | {"generation": world.generation, "seconds": round(world.first_step_at() - told, 3)}


def growth(check: Report, folder: Path) -> None:
    """From two to three ranks and back, announced, twice: no step is lost, and the parameters stay right."""
    with rig.gang(folder, "train.py", {"width": 512}) as world:
        world.start(2)
        spares = [world.spare() for _ in range(2)]
        world.await_step(6, 60.0)
        grown, shrunk = [], []
        for spare in spares:
            grown.append(world.change([spare]))
            world.await_step(max(row["step"] for row in world.steps()) + 4)
            shrunk.append(world.change([], leaving=[spare]))
            world.await_step(max(row["step"] for row in world.steps()) + 4)
        check.measure(secondsOfGrowth=grown, secondsOfShrinking=shrunk)
        steps = [row for row in world.steps() if row["rank"] == 0]
        order = [row["step"] for row in steps]
        check.expect(order == sorted(set(order)), "no step is lost or repeated in an announced change", order[-12:])
        _judge(check, world)


def loss_in_creation(check: Report, folder: Path) -> None:
    """A member dies while the communicators are made: before it makes any, and before its first collective."""
    with rig.gang(folder, "train.py", {"width": 256}) as world:
        world.start(4)
        step, found = 5, []
        for point in ("init", "ddp"):
            world.await_step(step, 60.0)
            lost = world.members[-1]
            (world.folder / f"die-{lost.pid}").write_text(point)
            world.call_over(announced=True)
            world.await_idle(world.members)
            world.form(world.members)
            rig.wait(lambda one=lost: one.poll() is not None, f"a member to die at {point}", 20.0)  # type: ignore[misc]
            time.sleep(1.0)  # the others are in the midst of it
            one = world.continue_without(lost)
            found.append(one | {"point": point})
            check.measure(losses=found)
            check.expect(one["idle"] < 5.0, f"a loss at {point!r} frees the others within seconds", one["idle"])
            step = max(one["steps"]) + 4
        world.await_step(step)
        check.goal("seconds until a loss in the creation has freed everybody", max(one["idle"] for one in found), 1.0)
        _judge(check, world)


def regroups(check: Report, folder: Path) -> None:
    """Worlds of the same two ranks, each second one lost and not announced: what each leaves behind."""
    count = 8 if rig.DRY else 24
    with rig.gang(folder, "train.py", {"width": 256}) as world:
        world.start(2)
        world.await_step(4, 60.0)
        announced, lost = [], []
        for number in range(count):
            if number % 2:
                told = world.call_over(announced=False)
                world.await_idle(world.members)
                step = max(world.idle[one.pid]["step"] for one in world.members)
                world.form(world.members)
                world.await_step(step + 2)
                lost.append(round(world.first_step_at() - told, 3))
            else:
                announced.append(world.change([]))
            check.measure(secondsAnnounced=announced, secondsLost=lost)
        worlds = [row for row in world.find("world") if row["rank"] == 0]
        looks = [{name: row[name] for name in ("threads", "files", "rssMib", "keptMib", "freeMib")} for row in worlds]
        check.measure(looks=looks)
        # The communicators of the last worlds are still being aborted: what is compared is the least of some looks.
        early, late = looks[2 : 2 + count // 3], looks[-(count // 3) :]
        for name, most in (("threads", 4), ("files", 8), ("rssMib", 48)):
            before, after = (min(one[name] for one in part) for part in (early, late))
            check.expect(after - before <= most, f"{name} stay flat over the worlds", f"{before} -> {after}")
        before, after = (max(one["freeMib"] for one in part) for part in (early, late))
        check.expect(
            before - after <= 64, "the device's memory stays flat over the worlds", f"{before - after} MiB more"
        )
        _judge(check, world)


def fsdp_killed(check: Report, folder: Path) -> None:
    """A model cut over three ranks (FSDP2), whose shards the next rank holds copies of; one rank is killed."""
    with rig.gang(folder, "fsdp.py", {"width": 256}) as world:
        world.start(3)
        world.await_step(8, 60.0)
        lost = world.members[-1]
        world.die(lost, "forward")
        time.sleep(rig.DETECTION)
        world.members = world.members[:-1]
        told = world.call_over(announced=False)
        world.await_idle(world.members)
        reached = max(world.idle[one.pid]["step"] for one in world.members)
        world.form(world.members)
        world.await_step(reached + 3)
        seconds = round(world.first_step_at() - told, 3)
        world.end()
        rows = [row for row in world.rows() if row["event"] == "step"]
        firsts = find_first_steps(rows)
        check.measure(
            secondsUntilNextStep=seconds,
            lostSteps=reached + 1 - firsts[world.generation],
        )
        check.expect(firsts[world.generation] > 0, "training goes on from the copies, not from the start", firsts)
        right = list(training.reference(256, max(row["step"] for row in rows) + 1))
        wrong = [row for row in rows if not abs(row["norm"] - right[row["step"]][0]) <= _CLOSE * right[row["step"]][0]]
        check.expect(not wrong, "every committed step has the parameters of the reference, to 1e-9", wrong[:2])
