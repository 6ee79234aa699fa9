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

from elasticjob_operator import admission, auth, connection, frames, limits, observe, text, wire

JobKey = tuple[str, str]  # (namespace, name)

_IN_WORLD = (wire.AgentPhase.RUNNING, wire.AgentPhase.LEAVING)

logger = logging.getLogger(__name__)


class Seat:
    """What the hub knows of one pod, over all its connections."""

    __slots__ = ("agent", "connects", "identity", "link", "messages", "notes", "pending", "placed", "wanted")

    def __init__(self, settings: limits.HubSettings, now: float) -> None:
        self.identity: auth.Identity | None = None
        self.agent: observe.Agent | None = None
        self.link: connection.Connection | None = None
        self.pending: connection.Connection | None = None  # upgraded, and has not yet said hello
        self.placed = False  # whether it counts among the agents that there may be
        self.wanted: wire.Directive | None = None
        # They are the pod's and not a connection's, so coming again fills none of them.
        self.connects = limits.Bucket(settings.connect_burst, now)
        self.messages = limits.Bucket(settings.message_burst, now)
        self.notes = limits.Bucket(settings.note_kib_burst, now)


class Seats:
    """The seats of all jobs, and the connections that are on them now."""

    def __init__(
        self, wake: Callable[[JobKey], None], clock: Callable[[], float], settings: limits.HubSettings
    ) -> None:
        self._wake = wake
        self._clock = clock
        self._settings = settings
        self._jobs: dict[JobKey, dict[str, Seat]] = {}
        self.places = admission.Room(settings.max_connections, settings.agent_greed)  # by namespace, as the next one
        self.pending = admission.Room(settings.max_pending)
        self._notes: dict[JobKey, limits.Bucket] = {}
        self._parting: dict[connection.Connection, None] = {}
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
            seat = seats[uid] if uid in seats else self._new_seat(seats, uid)
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
        self._notes.pop(job, None)

    def forget_pod(self, job: JobKey, uid: str) -> None:
        """The pod is gone."""
        seat = self._jobs.get(job, {}).pop(uid, None)
        if seat is None:
            return
        self._unsent.pop(seat, None)
        self._set_agent(job, seat, None)
        self._abandon_pending(seat)
        if seat.link is not None:
            link, seat.link = seat.link, None
            self._links.pop(link, None)
            self._dismiss(link, connection.Farewell("gone", connection.CLOSE_GOING_AWAY))
        self._give_place_back(seat)

    def admit(self, identity: auth.Identity, heartbeat: float) -> connection.Connection | auth.Refusal:
        """Whether the pod may connect once more: the connection on which it has to say hello.

        A pod has one such connection. A newer one takes the place of an older one, which may be half open.
        """
        settings, now = self._settings, asyncio.get_running_loop().time()
        seats = self._jobs.setdefault((identity.namespace, identity.job), {})
        seat = seats.get(identity.pod_uid) or self._new_seat(seats, identity.pod_uid)
        seat.identity = identity
        if not seat.connects.take(settings.connects_per_second, settings.connect_burst, now):
            return auth.Refusal(429, "this pod connects too often")
        self._abandon_pending(seat)
        if not seat.placed and not self.places.has_room(identity.namespace):
            return auth.Refusal(503, "too many agents")
        if not self.pending.enter(identity.namespace):
            return auth.Refusal(503, "busy; try again")
        if not seat.placed:
            seat.placed = self.places.enter(identity.namespace)
        seat.pending = connection.Connection(settings, heartbeat, now, seat.messages)
        return seat.pending

    def settle(self, link: connection.Connection, identity: auth.Identity, *, stays: bool) -> bool:
        """The wait for a hello is over. False where the connection was given up for another meanwhile."""
        seat = self._jobs.get((identity.namespace, identity.job), {}).get(identity.pod_uid)
        if seat is None or seat.pending is not link:
            return False
        seat.pending = None
        self.pending.leave(identity.namespace)
        if not stays:
            self._give_place_back(seat)
        return True

    def _new_seat(self, seats: dict[str, Seat], uid: str) -> Seat:
        seat = seats[uid] = Seat(self._settings, asyncio.get_running_loop().time())
        return seat

    def _abandon_pending(self, seat: Seat) -> None:
        if seat.pending is None or seat.identity is None:
            return
        seat.pending.farewell = connection.SUPERSEDED
        seat.pending.abort()
        seat.pending = None
        self.pending.leave(seat.identity.namespace)
        self.count_farewell(connection.SUPERSEDED, None)

    def _give_place_back(self, seat: Seat) -> None:
        if seat.placed and seat.link is None and seat.pending is None and seat.identity is not None:
            seat.placed = False
            self.places.leave(seat.identity.namespace)

    def enter(self, link: connection.Connection, identity: auth.Identity, hello: wire.Hello) -> Seat:
        """The agent said hello: it takes its pod's seat, and the place of a connection that was there."""
        job: JobKey = (identity.namespace, identity.job)
        seat = self._jobs[job][identity.pod_uid]
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
            kind, said = text.clean(message.kind), text.clean_block(message.text)
            self._note(seat, f"{job[0]}/{agent.pod} reports a {kind} in generation {message.generation}:\n{said}")
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
        self._give_place_back(seat)
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

    def _note(self, seat: Seat, line: str) -> None:
        """Writes what a pod caused into the log, as long as the pod and its job have not filled their share of it."""
        if seat.identity is None:
            return
        job, settings, now = (
            (seat.identity.namespace, seat.identity.job),
            self._settings,
            asyncio.get_running_loop().time(),
        )
        rate, burst, cost = settings.note_kib_per_second, settings.note_kib_burst, 1.0 + len(line) / 1024
        shared = self._notes.setdefault(job, limits.Bucket(8 * burst, now))
        if seat.notes.has(cost, rate, burst, now) and shared.take(8 * rate, 8 * burst, now, cost):
            seat.notes.take(rate, burst, now, cost)
            logger.warning("%s", line)
        else:
            self.counts["unlogged"] += 1

    def count_farewell(self, farewell: connection.Farewell, identity: auth.Identity | None) -> None:
        self.counts[f"closed:{farewell.reason}"] += 1
        if identity is not None and farewell.error is not None:
            seat = self._jobs.get((identity.namespace, identity.job), {}).get(identity.pod_uid)
            said = text.clean(farewell.error.message)
            if seat is not None:
                self._note(seat, f"closed the connection of {identity.namespace}/{identity.pod}: {said}")

    def _dismiss(self, link: connection.Connection, farewell: connection.Farewell) -> None:
        """Ends a connection from the hub's side, in the background."""
        self.leave(link, "closed")
        if link.farewell is not None:
            return
        link.farewell = farewell
        self.count_farewell(farewell, None)
        self.part(link)
        task = asyncio.get_running_loop().create_task(link.close(farewell))
        self.farewells.add(task)
        task.add_done_callback(self.farewells.discard)

    def part(self, link: connection.Connection) -> None:
        """From now on the connection waits for its peer to agree that it is over. Not too many do that at a time."""
        self._parting[link] = None
        if len(self._parting) > self._settings.max_pending:
            next(iter(self._parting)).abort()

    def parted(self, link: connection.Connection) -> None:
        self._parting.pop(link, None)

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
