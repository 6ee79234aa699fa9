"""The agent registry: the agents of all jobs and their current connections.

Every worker pod has one entry (`agents`), which outlives its connections. One task sends for all connections and one
sweep checks all for silence; neither waits for a single agent.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import Final

from elasticjob_operator import shares, text, turn
from elasticjob_operator.api import wire
from elasticjob_operator.api.names import JobKey
from elasticjob_operator.hub import auth, connection, frames, limits
from elasticjob_operator.hub.agents import AgentEntry, JobAgents
from elasticjob_operator.model import observe

logger = logging.getLogger(__name__)

_AGAIN_SECONDS: Final = 0.02  # until long directives that were put off are tried again


class AgentRegistry:
    """The entries of all jobs, and their current connections."""

    def __init__(
        self, wake: Callable[[JobKey], None], clock: Callable[[], float], settings: limits.HubSettings
    ) -> None:
        self._wake, self._clock, self._settings = wake, clock, settings
        self._jobs: dict[JobKey, JobAgents] = {}
        self._links: dict[connection.Connection, AgentEntry] = {}  # connections that have sent hello
        self._unsent: OrderedDict[AgentEntry, None] = OrderedDict()
        self._unread: dict[AgentEntry, None] = {}  # agents for which long directives wait
        # Others, whose directives wait for room, by namespace.
        self._put_off: dict[str, OrderedDict[AgentEntry, None]] = {}
        self._send_now = asyncio.Event()
        self._swept = float("inf")  # when the last sweep was
        self._measure_at = 0.0  # when the sweep looks at unsent bytes again
        self._line = turn.Line()  # of long messages, by namespace
        self._closing: dict[connection.Connection, None] = {}
        self.places = shares.Room(settings.max_connections, settings.agent_greed)  # by namespace, like the next one
        self.pending = shares.Room(settings.max_pending, settings.agent_greed)
        self.kept = shares.Room(settings.max_kept_bytes)  # by namespace: bytes of long messages that are kept
        self.arriving = shares.Room(settings.max_arriving_bytes)  # by namespace: bytes that wait to be a message
        self.unread = shares.Room(settings.max_unread_bytes)  # by namespace: bytes of long directives, see `_unread`
        self.closing: set[asyncio.Task[None]] = set()
        self.counts: Counter[str] = Counter()  # "refused:401", "closed:silent", "message:state", ...

    def __len__(self) -> int:
        return len(self._links)

    # The interface for the operator.

    def agents(self, job: JobKey) -> Mapping[str, observe.Agent]:
        """The job's agents by pod UID, including those that recently lost their connection."""
        if job not in self._jobs:
            return {}
        now = _now()
        is_held_up = limits.lost_seconds(now - self._swept, self._settings) > 0  # answers may have yet to be read
        return self._jobs[job].agents(self._swept if is_held_up else now)

    def direct(self, job: JobKey, directives: Mapping[str, wire.Directive]) -> None:
        """Set the directives of the job's pods, by pod UID; a pod that is not included has none.

        Level-triggered: a directive is sent if it differs from the last one on the agent's current connection.
        """
        if job not in self._jobs and not directives:
            return
        known = self._job(job)
        for uid in known.entries.keys() - directives.keys():
            known.entries[uid].wanted = None
        for uid, directive in directives.items():
            entry = known.entry(uid, _now())
            entry.wanted = directive
            if entry.link is not None and not entry.link.has_sent(directive):
                self.send_soon(entry)

    def forget(self, job: JobKey) -> None:
        """The job was deleted: close its remaining connections."""
        if job in self._jobs:
            self.forget_pods(job, but=())
            del self._jobs[job]

    def forget_pods(self, job: JobKey, *, but: Collection[str]) -> None:
        """The job has no pods any more but these, by UID: others may have come and gone since they were last told."""
        for uid in [uid for uid in self._jobs[job].entries if uid not in but] if job in self._jobs else ():
            self._forget_pod(job, uid)

    def _forget_pod(self, job: JobKey, uid: str) -> None:
        entry = self._jobs[job].forget(uid)
        if entry is None:
            return
        self._forget_unsent(entry)
        self._abandon_pending(entry)
        if entry.link is not None:
            link, entry.link = entry.link, None
            self._links.pop(link, None)
            self._dismiss(link, connection.CloseReason("gone", connection.CLOSE_GOING_AWAY))
            self._count_unread(entry)
        self._give_place_back(entry)
        for kind in list(entry.excess):
            self._may_keep(entry, kind, 0)

    def dismiss_all(self, close_reason: connection.CloseReason) -> None:
        for link in list(self._links):
            self._dismiss(link, close_reason)

    def _job(self, key: JobKey) -> JobAgents:
        if key not in self._jobs:
            self._jobs[key] = JobAgents(key, self._settings, _now())
        return self._jobs[key]

    def _find(self, identity: auth.Identity) -> AgentEntry | None:
        job = self._jobs.get((identity.namespace, identity.job))
        return None if job is None else job.entries.get(identity.pod_uid)

    # Admission: a slot, a hello, an entry.

    def admit(self, identity: auth.Identity, heartbeat: float) -> connection.Connection | auth.Refusal:
        """Admit a pod's new connection, on which it must send hello, or reject it.

        A pod has one such connection. A newer one replaces an older one, which may be half open.
        """
        settings, now = self._settings, _now()
        entry = self._job((identity.namespace, identity.job)).entry(identity.pod_uid, now)
        entry.identity = identity
        if not entry.connects.take(settings.connects_per_second, settings.connect_burst, now):
            return auth.Refusal(429, "this pod connects too often")
        self._abandon_pending(entry)
        if not entry.placed and not self.places.has_room(identity.namespace):
            return auth.Refusal(503, "too many agents")
        if not self.pending.enter(identity.namespace):
            return auth.Refusal(503, "busy; try again")
        if not entry.placed:
            entry.placed = self.places.enter(identity.namespace)
        wait_in_line = functools.partial(self._line.wait, identity.namespace)
        entry.pending = connection.Connection(settings, heartbeat, now, entry.messages, entry.bytes, wait_in_line)
        return entry.pending

    def settle(self, link: connection.Connection, identity: auth.Identity, *, stays: bool) -> bool:
        """The wait for hello has ended. False if another connection has replaced this one meanwhile."""
        entry = self._find(identity)
        if entry is None or entry.pending is not link:
            return False
        entry.pending = None
        self.pending.leave(identity.namespace)
        if not stays:
            self._give_place_back(entry)
        return True

    def _abandon_pending(self, entry: AgentEntry) -> None:
        if entry.pending is None or entry.identity is None:
            return
        link, entry.pending = entry.pending, None
        self.pending.leave(entry.identity.namespace)
        self._abort(link, connection.SUPERSEDED)

    def _give_place_back(self, entry: AgentEntry) -> None:
        if entry.placed and entry.link is None and entry.pending is None and entry.identity is not None:
            entry.placed = False
            self.places.leave(entry.identity.namespace)

    def enter(self, link: connection.Connection, identity: auth.Identity, hello: wire.Hello) -> AgentEntry | None:
        """Record the agent's hello: this connection replaces the pod's previous one. None: there is no room for it."""
        job = self._jobs[identity.namespace, identity.job]
        entry = job.entries[identity.pod_uid]
        self.discharge(link, identity.namespace)  # hello itself has been read
        state = self._fit(entry, hello.state, link.size)
        if state is None:
            self._give_place_back(entry)
            return None
        hello = hello.model_copy(update={"state": state})
        old, entry.link = entry.link, link
        self._links[link] = entry
        same_agent = job.greet(entry, identity, hello, self._clock())
        if old is not None:
            self._links.pop(old, None)
            self._dismiss(old, connection.RECONNECTED if same_agent else connection.REPLACED)
        self.counts["connected"] += 1
        self._wake(job.key)
        return entry

    # Messages of agents, and the end of connections.

    def receive(self, entry: AgentEntry, message: frames.Message, size: int) -> connection.CloseReason | None:
        """Take a message of so many bytes; returns why the connection must be closed instead."""
        self.counts[f"message:{message.type}"] += 1
        job = entry.job
        if entry.link is not None and entry.link.charged:
            self.discharge(entry.link, job.key[0])
        if isinstance(message, wire.Progress):
            if not self._may_keep(entry, "progress", size):
                return connection.CROWDED
            job.set_progress(entry, message, self._clock())
            is_first = message.step is not None and job.is_first_step(entry, message.generation)
            self._wake_for_progress(job, is_first=is_first)
        elif isinstance(message, wire.Diagnosis):
            kind, said = text.clean(message.kind), text.clean_block(message.text)
            pod = f"{job.key[0]}/{entry.agent.pod if entry.agent else ''}"
            self._note(entry, f"{pod} reports a {kind} in generation {message.generation}:\n{said}")
        else:
            state = self._fit(entry, message.state, size)
            if state is None:
                return connection.CROWDED
            if job.set_state(entry, state, self._clock()):
                self._wake(job.key)
                self._ask_quiet(job, _now())
        return None

    def _fit(self, entry: AgentEntry, state: wire.AgentState, size: int) -> wire.AgentState | None:
        """The state, without what only tells more where there is no room for it; None if there is none for the rest."""
        if self._may_keep(entry, "state", size):
            return state
        short = frames.without_tracebacks(state)
        return short if self._may_keep(entry, "state", len(short.model_dump_json(exclude_none=True))) else None

    def _may_keep(self, entry: AgentEntry, kind: str, size: int) -> bool:
        """Whether the namespace has room for a message of so many bytes in place of the last one of this kind.

        Each pod has room for short ones. So the memory that the long ones take is bounded, however many pods there are.
        """
        if size <= self._settings.kept_bytes and not entry.excess:
            return True
        excess, before, namespace = (
            max(0, size - self._settings.kept_bytes),
            entry.excess.get(kind, 0),
            entry.job.key[0],
        )
        if excess > before and not self.kept.enter(namespace, excess - before):
            return False
        if excess < before:
            self.kept.leave(namespace, before - excess)
        if excess:
            entry.excess[kind] = excess
        else:
            entry.excess.pop(kind, None)
        return True

    def charge(self, link: connection.Connection, namespace: str) -> bool:
        """Take room for what waits on this connection until a message has ended and is read; False if there is none."""
        self.discharge(link, namespace)
        more = max(0, link.arriving - self._settings.kept_bytes) - link.charged
        if more and not self.arriving.enter(namespace, more):
            return False
        link.charged += more
        return True

    def discharge(self, link: connection.Connection, namespace: str, *, is_over: bool = False) -> None:
        """Give back the room for what waits no more: it has been read, or the connection `is_over`."""
        left = 0 if is_over else max(0, link.arriving - self._settings.kept_bytes)
        if left < link.charged:
            self.arriving.leave(namespace, link.charged - left)
            link.charged = left

    def _wake_for_progress(self, job: JobAgents, *, is_first: bool = False) -> None:
        if job.is_progress_due(_now(), is_first=is_first):
            self._wake(job.key)

    def _ask_quiet(self, job: JobAgents, now: float) -> None:
        """Where workers wait for others: ask the quiet agents whether they are there."""
        for entry in job.find_quiet(now):
            entry.asks = True
            self.send_soon(entry)

    def _note(self, entry: AgentEntry, line: str) -> None:
        """Log something that a pod caused, as long as the quotas of the pod, its job and its namespace allow."""
        if entry.identity is None:
            return
        if entry.job.may_note(entry, line, _now()):
            logger.warning("%s", line, extra={"namespace": entry.job.key[0]})
        else:
            self.counts["unlogged"] += 1

    def leave(self, link: connection.Connection, lost_by: str) -> None:
        """The connection has ended; does nothing if that is already recorded."""
        entry = self._links.pop(link, None)
        if entry is None or entry.link is not link or entry.agent is None:
            return
        entry.link = None
        self._give_place_back(entry)
        self._forget_unsent(entry)
        self._count_unread(entry)
        entry.job.set_lost(entry, lost_by, self._clock())
        self.counts[f"lost:{lost_by}"] += 1
        self._wake(entry.job.key)

    def count_close(self, close_reason: connection.CloseReason, identity: auth.Identity | None) -> None:
        self.counts[f"closed:{close_reason.reason}"] += 1
        if identity is not None and close_reason.error is not None:
            entry = self._find(identity)
            said = text.clean(close_reason.error.message)
            if entry is not None:
                self._note(entry, f"closed the connection of {identity.namespace}/{identity.pod}: {said}")

    def _dismiss(self, link: connection.Connection, close_reason: connection.CloseReason) -> None:
        """Close a connection from the hub's side, in the background."""
        self.leave(link, "closed")
        if link.close_reason is not None:
            return
        link.mark_over(close_reason)
        self.count_close(close_reason, None)
        self.part(link)
        task = asyncio.get_running_loop().create_task(link.close(close_reason))
        self.closing.add(task)
        task.add_done_callback(self.closing.discard)

    def _abort(self, link: connection.Connection, close_reason: connection.CloseReason) -> None:
        """End a connection whose peer does not read."""
        link.mark_over(close_reason)
        self.count_close(close_reason, None)
        link.abort()

    def part(self, link: connection.Connection) -> None:
        """Let the connection wait for the peer's close frame; the number of such connections is limited."""
        self._closing[link] = None
        if len(self._closing) > self._settings.max_pending:
            next(iter(self._closing)).abort()

    def cut_off(
        self, link: connection.Connection, identity: auth.Identity, close_reason: connection.CloseReason
    ) -> None:
        """The peer sends more than it may; its transport is being closed."""
        if link.close_reason is None:
            link.mark_over(close_reason)
            self.count_close(close_reason, identity)

    def parted(self, link: connection.Connection) -> None:
        self._closing.pop(link, None)

    # One sender and one sweep for all.

    def send_soon(self, entry: AgentEntry) -> None:
        """Queue this entry for the sender."""
        self._unsent[entry] = None
        self._send_now.set()

    async def send_forever(self) -> None:
        """Send all directives that have not been sent yet, for all entries."""
        while True:
            await self._send_now.wait()
            self._send_now.clear()
            while self._unsent:
                entry, _ = self._unsent.popitem(last=False)
                await self._send_directive(entry)
                await turn.pause()

    async def _send_directive(self, entry: AgentEntry) -> None:
        link, directive = entry.link, entry.wanted
        if entry.asks and link is not None:
            entry.asks = False
            asyncio.get_running_loop().call_later(await link.ask(_now()), self._wake, entry.job.key)
            self.counts["asked"] += 1
        if link is None or directive is None or link not in self._links or not link.open_for_sending:
            return
        if link.has_sent(directive) or link.is_full:
            return  # the sweep retries if the buffer is full
        if (why_not := link.why_not(directive, entry.job.encoder)) is not None:
            self._note(entry, f"cannot tell {'/'.join(entry.job.key)} its world: {why_not.message}")
            self._dismiss(link, connection.CloseReason(why_not.code, connection.CLOSE_MALFORMED, why_not))
            return
        if not self._may_write(entry, _measure(entry)):
            self._put_off_until_room(entry)
            return
        try:
            await link.direct(directive, entry.job.encoder)
            self.counts["directives"] += 1
        except (ConnectionError, RuntimeError):
            pass  # its handler detects that
        except Exception:
            logger.exception("could not send a directive")
        self._count_unread(entry)

    def _may_write(self, entry: AgentEntry, size: int) -> bool:
        """Whether the namespace has room for so many bytes more that its agents have not read yet.

        Most directives are short, and agents read them at once. Those that list a world for each of its pods are not,
        and what waits for those that do not read would grow with the square of their number.
        """
        if size <= self._settings.kept_bytes:
            return True
        if not self.unread.enter(entry.job.key[0], size):
            return False
        entry.unread += size
        self._unread[entry] = None
        return True

    def _count_unread(self, entry: AgentEntry) -> None:
        """Give back the room for what the agent has read, or will never read."""
        left = 0 if entry.link is None else min(entry.unread, entry.link.unsent())
        if left != entry.unread:
            self.unread.leave(entry.job.key[0], entry.unread - left)
            entry.unread = left
        if not left:
            self._unread.pop(entry, None)

    def _put_off_until_room(self, entry: AgentEntry) -> None:
        if not self._put_off:
            asyncio.get_running_loop().call_later(_AGAIN_SECONDS, self._send_put_off)
        self._put_off.setdefault(entry.job.key[0], OrderedDict())[entry] = None

    def _send_put_off(self) -> None:
        """Send as many of the long directives that were put off as there is room for now."""
        for entry in list(self._unread):
            self._count_unread(entry)
        waiting, self._put_off = self._put_off, {}
        for namespace, entries in waiting.items():
            size = 0
            while entries:
                entry = next(iter(entries))
                size += _measure(entry)
                if not self.unread.has_room(namespace, size):
                    self._put_off[namespace] = entries
                    break
                del entries[entry]
                self.send_soon(entry)
        if self._put_off:
            asyncio.get_running_loop().call_later(_AGAIN_SECONDS, self._send_put_off)

    def _forget_unsent(self, entry: AgentEntry) -> None:
        self._unsent.pop(entry, None)
        self._put_off.get(entry.job.key[0], OrderedDict()).pop(entry, None)

    def sweep(self, now: float, lost: float) -> None:
        """Check all connections for silence, and sometimes for unsent bytes. `lost`: how long the hub did not run."""
        self._swept = now
        for link in self._links if lost else ():
            link.excuse(lost, now)
        failed = connection.find_failed(self._links, now, measures=now >= self._measure_at)
        if now >= self._measure_at:
            self._measure_at = now + limits.measure_seconds(self._settings)
            for link, entry in self._links.items():
                if entry.wanted is not None and not link.has_sent(entry.wanted):
                    self.send_soon(entry)
        for link, failure in failed.items():
            self.leave(link, "silent")
            self._abort(link, connection.CloseReason(failure, connection.CLOSE_GOING_AWAY))
        for entry in list(self._unread):
            self._count_unread(entry)
        for job in list(self._jobs.values()):
            if job.progress_waits:
                self._wake_for_progress(job)
            self._ask_quiet(job, now)


def _measure(entry: AgentEntry) -> int:
    """About how many bytes the entry's directive has, if that is long."""
    link, directive = entry.link, entry.wanted
    return 0 if link is None or directive is None else link.measure(directive, entry.job.encoder)


def _now() -> float:
    return asyncio.get_running_loop().time()
