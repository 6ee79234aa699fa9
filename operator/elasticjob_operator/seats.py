"""Who sits where: the agents of every job, what they said last and what holds for them.

Every worker pod has one seat. It outlives the pod's connections and holds the latest state of its agent and the
directive that holds for it. Both are whole states, so a lost connection costs nothing but a reconnect.

One task sends for all connections and one sweep judges silence for all; neither waits for a single agent.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from elasticjob_operator import auth, connection, frames, limits, observe, text, wire

JobKey = tuple[str, str]  # (namespace, name)

_IN_WORLD = (wire.AgentPhase.RUNNING, wire.AgentPhase.LEAVING)

logger = logging.getLogger(__name__)


class Seat:
    """What the hub knows of one pod, over all its connections."""

    __slots__ = ("agent", "connects", "identity", "link", "wanted")

    def __init__(self, identity: auth.Identity | None = None) -> None:
        self.identity = identity
        self.agent: observe.Agent | None = None
        self.link: connection.Connection | None = None
        self.wanted: wire.Directive | None = None
        self.connects: limits.Bucket | None = None


class Seats:
    """The seats of all jobs, and the connections that are on them now."""

    def __init__(
        self, wake: Callable[[JobKey], None], clock: Callable[[], float], settings: limits.HubSettings
    ) -> None:
        self._wake = wake
        self._clock = clock
        self._settings = settings
        self._jobs: dict[JobKey, dict[str, Seat]] = {}
        self._links: dict[connection.Connection, tuple[JobKey, str]] = {}
        self._encoders: dict[JobKey, frames.DirectiveEncoder] = {}
        self._unsent: dict[Seat, None] = {}
        self._send_now = asyncio.Event()
        self._progress_woken: dict[JobKey, float] = {}
        self._progress_waits: set[JobKey] = set()
        self.farewells: set[asyncio.Task[None]] = set()
        self._tallies: dict[JobKey, Counter[str]] = {}  # how many of a job's agents are what `_traits` says
        self.counts: Counter[str] = Counter()  # "refused:401", "closed:silent", "message:state", ...

    def __len__(self) -> int:
        return len(self._links)

    def agents(self, job: JobKey) -> Mapping[str, observe.Agent]:
        """The job's agents by pod uid, those included that lately lost their connection."""
        seats = self._jobs.get(job, {})
        return {uid: seat.agent for uid, seat in seats.items() if seat.agent is not None}

    def is_in_process(self, job: JobKey) -> bool:
        """Whether the job's scripts keep their memory over a regroup, as all that were in a world have shown."""
        found = self._tallies.get(job, Counter())
        return 0 < found["tried"] == found["keeping"]

    def is_training(self, job: JobKey) -> bool:
        """Whether some of the job's agents are in a world, which would have to stop for a newcomer."""
        return self._tallies.get(job, Counter())["training"] > 0

    def _set_agent(self, job: JobKey, seat: Seat, agent: observe.Agent | None) -> None:
        """Every change of an agent but its progress comes here, so that the tally is right."""
        tally = self._tallies.setdefault(job, Counter())
        tally.subtract(_traits(seat.agent))
        tally.update(_traits(agent))
        seat.agent = agent

    def direct(self, job: JobKey, directives: Mapping[str, wire.Directive]) -> None:
        """Says what holds for the job's pods, by pod uid; a pod that is not named has no directive.

        Level-triggered: call it with the same again and nothing is sent. A directive is sent when it differs
        from the last one on the present connection, and again when the same agent reconnects.
        """
        seats = self._jobs.setdefault(job, {}) if directives else self._jobs.get(job, {})
        for uid, seat in seats.items():
            if uid not in directives:
                seat.wanted = None
        for uid, directive in directives.items():
            seat = seats.setdefault(uid, Seat())
            seat.wanted = directive
            if seat.link is not None and not frames.same(seat.link.sent, directive):
                self.send_soon(seat)

    def forget(self, job: JobKey) -> None:
        """The job is gone: closes what is left of it."""
        for uid in list(self._jobs.get(job, {})):
            self.forget_pod(job, uid)
        self._jobs.pop(job, None)
        self._tallies.pop(job, None)
        self._encoders.pop(job, None)
        self._progress_woken.pop(job, None)
        self._progress_waits.discard(job)

    def forget_pod(self, job: JobKey, uid: str) -> None:
        """The pod is gone."""
        seat = self._jobs.get(job, {}).pop(uid, None)
        if seat is None:
            return
        self._unsent.pop(seat, None)
        self._set_agent(job, seat, None)
        if seat.link is not None:
            self._dismiss(seat.link, connection.Farewell("gone", connection.CLOSE_GOING_AWAY))

    def admit(self, identity: auth.Identity) -> auth.Identity | auth.Refusal:
        """Whether the pod may connect once more; makes its seat."""
        settings, now = self._settings, asyncio.get_running_loop().time()
        seats = self._jobs.setdefault((identity.namespace, identity.job), {})
        seat = seats.setdefault(identity.pod_uid, Seat())
        seat.identity = identity
        seat.connects = seat.connects or limits.Bucket(settings.connect_burst, now)
        if not seat.connects.take(settings.connects_per_second, settings.connect_burst, now):
            return auth.Refusal(429, "this pod connects too often")
        return identity

    def enter(self, link: connection.Connection, identity: auth.Identity, hello: wire.Hello) -> Seat:
        """The agent said hello: it takes its pod's seat, and the place of a connection that was there."""
        job: JobKey = (identity.namespace, identity.job)
        seat = self._jobs.setdefault(job, {}).setdefault(identity.pod_uid, Seat(identity))
        old, now = seat.link, self._clock()
        seat.link, link.sizes = link, hello.sizes
        self._links[link] = (job, identity.pod_uid)
        before = seat.agent
        same_agent = before is not None and before.agent_id == hello.agent
        if old is not None:
            self._links.pop(old, None)
            self._dismiss(old, connection.RECONNECTED if same_agent else connection.REPLACED)
        if not same_agent:
            # Said to a process that is gone: a world it was in is nothing for its successor.
            seat.wanted = None
        agent = observe.Agent(
            pod=identity.pod,
            pod_uid=identity.pod_uid,
            connected=True,
            since=now,
            state=hello.state,
            state_since=_state_since(before if same_agent else None, hello.state, now),
            progress=before.progress if before is not None and same_agent else None,
            agent_id=hello.agent,
        )
        self._set_agent(job, seat, agent)
        self.counts["connected"] += 1
        self._wake(job)
        return seat

    def hear(self, job: JobKey, seat: Seat, message: frames.Message) -> None:
        assert seat.agent is not None
        self.counts[f"message:{message.type}"] += 1
        agent = seat.agent
        if isinstance(message, wire.Progress):
            seat.agent = replace(agent, progress=message)
            self._wake_for_progress(job)
        elif isinstance(message, wire.Diagnosis):
            logger.warning(
                "%s/%s reports a %s in generation %d:\n%s",
                job[0],
                agent.pod,
                text.clean(message.kind),
                message.generation,
                text.clean_block(message.text),
            )
        elif message.state != agent.state:
            since = _state_since(agent, message.state, self._clock())
            self._set_agent(job, seat, replace(agent, state=message.state, state_since=since))
            self._wake(job)

    def leave(self, link: connection.Connection, lost_by: str) -> None:
        """The connection is over; nothing happens where that is known already."""
        place = self._links.pop(link, None)
        if place is None:
            return
        job, uid = place
        seat = self._jobs.get(job, {}).get(uid)
        if seat is None or seat.link is not link or seat.agent is None:
            return
        seat.link = None
        self._unsent.pop(seat, None)
        self._set_agent(job, seat, replace(seat.agent, connected=False, since=self._clock(), lost_by=lost_by))
        self.counts[f"lost:{lost_by}"] += 1
        self._wake(job)

    def _wake_for_progress(self, job: JobKey) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._progress_woken.get(job, float("-inf")) < self._settings.progress_wake_seconds:
            self._progress_waits.add(job)
            return
        self._progress_waits.discard(job)
        self._progress_woken[job] = now
        self._wake(job)

    def count_farewell(self, farewell: connection.Farewell, identity: auth.Identity | None) -> None:
        self.counts[f"closed:{farewell.reason}"] += 1
        if identity is not None and farewell.error is not None:
            who = f"{identity.namespace}/{identity.pod}"
            logger.warning("closed the connection of %s: %s", who, text.clean(farewell.error.message))

    def _dismiss(self, link: connection.Connection, farewell: connection.Farewell) -> None:
        """Ends a connection from the hub's side, in the background."""
        self.leave(link, "closed")
        if link.farewell is not None:
            return
        link.farewell = farewell
        self.count_farewell(farewell, None)
        task = asyncio.get_running_loop().create_task(link.close(farewell))
        self.farewells.add(task)
        task.add_done_callback(self.farewells.discard)

    def dismiss_all(self, farewell: connection.Farewell) -> None:
        for link in list(self._links):
            self._dismiss(link, farewell)

    def send_soon(self, seat: Seat) -> None:
        """The sender looks at this seat when its turn comes."""
        self._unsent[seat] = None
        self._send_now.set()

    async def send_forever(self) -> None:
        """Sends what is wanted and not sent yet, for all seats."""
        while True:
            await self._send_now.wait()
            self._send_now.clear()
            sent = 0
            while self._unsent:
                seat = next(iter(self._unsent))
                del self._unsent[seat]
                await self._send_directive(seat)
                sent += 1
                if sent % 32 == 0:
                    await asyncio.sleep(0)  # others want to be heard meanwhile

    async def _send_directive(self, seat: Seat) -> None:
        link, directive = seat.link, seat.wanted
        if link is None or directive is None or link not in self._links or not link.open_for_sending:
            return
        if frames.same(link.sent, directive) or link.unsent() > self._settings.max_buffer_bytes:
            return  # where the buffer is full, the sweep comes back to it
        try:
            encoder = self._encoders.setdefault(self._links[link][0], frames.DirectiveEncoder())
            await link.send(encoder.encode(directive, sizes=link.sizes))
            link.sent = directive
            self.counts["directives"] += 1
        except (ConnectionError, RuntimeError):
            pass  # its handler notices by itself
        except Exception:
            logger.exception("a directive could not be sent")

    def sweep(self, now: float, *, judge: bool) -> None:
        """Looks at every connection once. `judge` is false where the hub itself was away."""
        for link, (job, uid) in list(self._links.items()):
            if judge and now - link.heard > link.timeout:
                self._cut(link, "silent")
                continue
            if link.unsent() == 0:
                link.stuck = None
            elif link.stuck is None:
                link.stuck = now
            elif judge and now - link.stuck > self._settings.slow_seconds:
                self._cut(link, "slow")
                continue
            seat = self._jobs[job][uid]
            if seat.wanted is not None and not frames.same(link.sent, seat.wanted):
                self.send_soon(seat)
        for job in list(self._progress_waits):
            self._wake_for_progress(job)

    def _cut(self, link: connection.Connection, reason: str) -> None:
        """Ends a connection whose peer does not listen."""
        self.leave(link, "silent")
        link.farewell = connection.Farewell(reason, connection.CLOSE_GOING_AWAY)
        self.count_farewell(link.farewell, None)
        link.abort()


def _traits(agent: observe.Agent | None) -> list[str]:
    """What this agent counts as when a newcomer asks what the others do."""
    if agent is None or not agent.connected:
        return []
    found: list[str] = []
    state = agent.state
    if state.generation > 0:
        found += ["tried", "keeping"] if state.in_process else ["tried"]
    if state.phase in _IN_WORLD:
        found.append("training")
    return found


def _state_since(before: observe.Agent | None, state: wire.AgentState, now: float) -> float:
    if before is None:
        return now
    same = (before.state.phase, before.state.generation) == (state.phase, state.generation)
    return before.state_since if same else now
