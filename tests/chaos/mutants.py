"""Deliberate mistakes in operator and runtime: each is one replaced text in a copy of a package, and must be detected.

A mutant runs against the cheapest suite that can detect it. A text that no longer exists is an error: the list follows
the code. A mistake in a file that tests read where it is, and not import, is made in a copy of the repository.
"""

# ruff: noqa: E501 - a table
from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODEL = ("tests/model", "-k", "code_does")
ACCOUNTING = ("tests/chaos/test_chaos_accounting.py",)
TABLE = ("tests/controller/membership/test_membership.py",)
LEADERSHIP = ("tests/controller/kube/test_leadership.py",)
OPERATE = ("tests/controller/run/test_operator.py",)
SIMULATION = ("tests/controller", "-k", "simulation")
WATCH = ("tests/controller/kube/test_watch.py",)
CACHE = ("tests/controller/kube/test_cache.py",)
AGENT = ("tests/worker/agent/test_machine.py",)
ORDERS = ("tests/worker/agent/test_machine_orders.py",)
SESSION = ("tests/worker/sessions/test_session_machine.py",)
RECOVERY = ("tests/worker/sessions/test_recovery.py",)
PEERS = ("tests/worker/peers/test_choice.py", "tests/worker/peers/test_lead.py", "tests/worker/peers/test_records.py")
HELD = ("tests/chaos/test_chaos_memory.py", "-k", "moments")
SUSPENDED = ("tests/chaos/test_chaos_scripts.py", "-k", "suspended_script")
TUTORIALS = ("tests/chaos/test_chaos_scripts.py", "-k", "tutorials")
TWO_WRITERS = ("tests/worker/archive/test_histories.py", "-k", "two_agents or about_to_delete")
IN_PART = ("tests/worker/archive/test_histories.py", "-k", "in_part")
KEPT = ("tests/worker/archive/test_layout.py", "-k", "kept")
INTERRUPT = ("tests/worker/sessions/test_interrupt.py",)
CONNECTING = ("tests/worker/protocol/test_connecting.py",)
OPERATOR, RUNTIME = "operator/elasticjob_operator", "worker_image/src/elasticjob"
DOORS = ("tests/controller/hub/test_doors.py",)
AUTH = ("tests/controller/hub/test_auth.py",)
GUARD = ("tests/dashboard/test_guard.py",)
APPLY = ("tests/controller/apply/test_apply.py",)
ROUNDS = ("tests/controller/pool/test_rounds.py",)
FAIR = ("tests/controller/kube/test_fair_queue.py",)
METRICS = ("tests/controller/run/test_metrics.py",)
STRANGERS = "tests/integration/test_strangers.py"
DEVCLUSTER, CHART, REPOSITORY = "devcluster/elasticjob_devcluster", "manifests/chart/elasticjob", "."


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    module: str
    old: str
    new: str
    suite: tuple[str, ...] = SIMULATION
    quick: bool = False
    package: str = OPERATOR
    breaks: str = ""  # a guarantee of SECURITY.md

    @property
    def file(self) -> Path:
        return Path(self.package) / self.module

    @property
    def is_imported(self) -> bool:
        return self.file.suffix == ".py"


MUTANTS = (
    Mutant("no fencing", "membership/directives.py", "if w.pod.uid not in inside and", "if False and", MODEL, quick=True),
    Mutant("form without all stopped", "membership/decide.py", "    if not pending:\n", "    if True:\n", MODEL, quick=True),
    Mutant("grow while members start", "membership/changes.py", "(MemberHealth.SUSPECT, MemberHealth.STARTING)", "()", MODEL),
    Mutant("no doubt about the silent", "membership/decide.py", "if doubtful and not ended:", "if False:", TABLE, True),
    Mutant("ranks that do not stick", "membership/joiners.py", "candidates = [*survivors, *coming]",
           "candidates = [*coming, *survivors]", MODEL),
    Mutant("who alone has a shard is left out", "membership/joiners.py", "(is_forced or all(holders[part] > 1 for part in mine))",
           "True", TABLE, quick=True),
    Mutant("a generation twice", "membership/decide.py", "generation=situation.world.generation + 1",
           "generation=max(1, situation.world.generation)", SIMULATION),
    Mutant("a suspect is lost at once", "membership/member_health.py", "until = agent.since + settings.reconnect",
           "until = agent.since", MODEL),
    Mutant("a silent member is lost while the steps go on", "membership/member_health.py",
           "evidence = [j.health in over or _is_waiting(j) for j in rest]", "evidence = [True for j in rest]", TABLE, True),
    Mutant("one that waits speaks for all", "membership/member_health.py",
           " or any(health is not MemberHealth.LOST for health in others)", "", TABLE),
    Mutant("who does not answer is waited for", "membership/fencing.py", " or agent.mute:", ":", MODEL),
    Mutant("who does not answer is lost for no reason", "membership/member_health.py",
           "    if not any(evidence) or any(", "    if any(", TABLE),
    Mutant("a pod that does not answer is replaced at once", "plan/selection.py", " or worker.agent.mute:", ":",
           ("tests/controller/simulation/test_simulation.py", "-k", "paused")),
    Mutant("an agent that answers is mute", "hub/connection.py", "return self._last_heard < self._asked and ", "return ",
           ("tests/controller/hub/test_server.py", "-k", "asked")),
    Mutant("no grace after a restart", "membership/member_health.py", "until = situation.hub_started + settings.restart_grace",
           "until = situation.hub_started", MODEL),
    Mutant("forget the budget", "plan/accounting.py", "status.restarts.user > spec.elastic_policy.max_restarts", "False"),
    Mutant("forget which pods are accounted for", "plan/accounting.py", "pod.uid not in counted", "True",
           ACCOUNTING, quick=True),
    Mutant("who has not started has stopped", "membership/fencing.py", "MemberHealth.STARTING, MemberHealth.STOPPING", "MemberHealth.STOPPING",
           MODEL, quick=True),
    Mutant("whoever is connected is out", "membership/fencing.py", "    state = worker.agent.state\n",
           "    state = worker.agent.state\n    if worker.agent.connected:\n        return True\n", TABLE),
    Mutant("announce is forgotten", "plan/plan.py", "announces=decision.world is not None", "announces=False"),
    Mutant("the right is not asked for again", "rest/transport.py", "            self.guard(req.method, req.url.path)\n",
           "            pass\n", ("tests/controller/kube/test_leadership.py", "-k", "before_it_is_used"), quick=True,
           breaks="Only the leader writes"),
    Mutant("a body is sent without the right", "rest/transport.py", "            self._check()\n", "            pass\n",
           ("tests/controller/kube/test_leadership.py", "-k", "before_it_is_used"), quick=True,
           breaks="Only the leader writes"),
    Mutant("whoever asks may write", "kube/client.py", "        if left <= 0:\n", "        if False:\n", LEADERSHIP,
           quick=True, breaks="Only the leader writes"),
    Mutant("in doubt go on writing", "kube/lease.py", "self._leadership.end()  # another candidate may hold it by now", "pass",
           LEADERSHIP),
    Mutant("a longer Lease is cut short", "kube/lease.py", "max(timing.duration, granted)", "timing.duration",
           LEADERSHIP),
    Mutant("a follower may start the loop", "run/controller.py", "            raise RuntimeError(\"only the leader",
           "            str(\"only the leader", OPERATE),
    Mutant("one object ends its watch", "kube/intake.py", "except Exception as error:", "except EOFError as error:",
           ("tests/controller/kube/test_watch.py",), breaks="No object can stop the operator"),
    Mutant("a failing watch stays away", "kube/supervise.py", "        except Exception as error:\n            failures",
           "        except EOFError as error:\n            failures", ("tests/controller/kube/test_supervise.py",),
           breaks="No object can stop the operator"),
    Mutant("a follower may delete", "kube/client.py", "if method in READS or", 'if method in (*READS, "DELETE") or',
           ("tests/controller/kube/test_leadership.py", "-k", "without_the_right"), breaks="Only the leader writes"),
    Mutant("a Lease that is gone is free", "kube/lease.py", "            self._lease = {}\n            return\n",
           "            self._lease, self._seen = {}, Sighting()\n            return\n",
           ("tests/controller/kube/test_leadership.py", "-k", "gave_back")),
    Mutant("an event of any size is kept", "rest/json_stream.py", "if self._size <= self._longest:", "if True:",
           ("tests/controller/rest/test_json_stream.py",), quick=True),
    Mutant("an item of any number of values is decoded", "rest/json_stream.py", "        text = self._text[begin:end]\n        if end",
           "        self._decoder.raw_decode(self._text, begin)\n        text = self._text[begin:end]\n        if end",
           ("tests/controller/rest/test_json_stream.py", "-k", "list_either"), quick=True,
           breaks="A bad object harms only itself"),
    Mutant("a deletion that cannot be read is not told", "rest/json_stream.py", "self._reduce(text) or bury(line)", "self._reduce(text)",
           ("tests/controller/rest/test_json_stream.py", "-k", "deletion"), quick=True, breaks="A bad object harms only itself"),
    Mutant("an object that is read alone is decoded", "rest/json_stream.py", "value[name] = await reader.item()",
           "value[name] = reader.value()", ("tests/controller/rest/test_json_stream.py", "-k", "alone_either"), quick=True,
           breaks="A bad object harms only itself"),
    Mutant("large bodies are decoded together", "kube/client.py", "self._decoding = Slots(1)", "self._decoding = Slots(99)",
           ("tests/controller/kube/test_client.py", "-k", "decoded_together")),
    Mutant("events that arrive together are read in one piece", "rest/json_stream.py", "                yield await self._take()\n                await turn.pause()",
           "                yield await self._take()", WATCH),
    Mutant("what is left out is not counted", "kube/intake.py", "        self._count(kind, problem)\n", "", WATCH),
    Mutant("waits for a hello are not counted", "hub/registry.py", "if not self.pending.enter(identity.namespace):",
           "if not self.pending.enter(identity.namespace) and False:", DOORS,
           breaks="A tenant's pods cannot lock out another tenant's agents"),
    Mutant("a pod waits for many hellos", "hub/registry.py",
           "        self._abandon_pending(entry)\n        if not entry.placed", "        if not entry.placed", DOORS,
           breaks="A tenant's pods cannot lock out another tenant's agents"),
    Mutant("who comes again may say as much again", "hub/registry.py", "now, entry.messages, ",
           "now, ratelimit.Bucket(settings.message_burst, now), ", ("tests/controller/hub/test_limits.py",)),
    Mutant("bytes without a message are free", "hub/handshake.py", "not self.meter(len(data)):", "False:",
           ("tests/controller/hub/test_limits.py", "-k", "no_message_comes"),
           breaks="A tenant's pods cannot lock out another tenant's agents"),
    Mutant("a request may have any number of bytes", "hub/handshake.py", "self.meter = _allow(MOST_FIRST)", "self.meter = None",
           ("tests/controller/hub/test_doors.py", "-k", "without_an_end"),
           breaks="An unauthenticated client cannot exhaust the hub"),
    Mutant("a handshake may have any number of bytes", "hub/handshake.py", "if self._left < 0:", "if False:",
           ("tests/controller/hub/test_doors.py", "-k", "long_first_message"),
           breaks="An unauthenticated client cannot exhaust the hub"),
    Mutant("what has arrived at once is parsed at once", "hub/handshake.py", "or len(data) > LONG_WORD:", "or False:",
           ("tests/controller/hub/test_at_once.py",), quick=True,
           breaks="No object and no number of them occupies the operator for long"),
    Mutant("long messages are read at once", "hub/connection.py", "await self._wait_in_line()", "pass",
           ("tests/controller/hub/test_at_once.py",), breaks="No object and no number of them occupies the operator for long"),
    Mutant("long messages of all namespaces have one line", "hub/registry.py", "partial(self._line.wait, identity.namespace)",
           'partial(self._line.wait, "")', ("tests/controller/hub/test_at_once.py", "-k", "no_other_namespace"),
           breaks="A tenant's pods cannot lock out another tenant's agents"),
    Mutant("whose message waits is silent", "hub/connection.py", "return max(self._heard, self._arrived)", "return self._heard",
           ("tests/controller/hub/test_at_once.py", "-k", "not_silent"),
           breaks="A tenant's pods cannot lock out another tenant's agents"),
    Mutant("worlds that nobody reads are written", "hub/registry.py", "if not self.unread.enter(entry.job.key[0], size):", "if False:",
           ("tests/controller/hub/test_unread_worlds.py", "-k", "few"),
           breaks="A tenant's pods cannot lock out another tenant's agents"),
    Mutant("what waits below TLS is not seen", "hub/connection.py", "if self.carrier is not None and", "if False and",
           ("tests/controller/hub/test_unread_worlds.py", "-k", "cut_off"),
           breaks="A tenant's pods cannot lock out another tenant's agents"),
    Mutant("who reads slowly does not read", "hub/connection.py", "if self._stuck_since is None or taken > before:",
           "if self._stuck_since is None:", ("tests/controller/hub/test_limits.py", "-k", "however_much")),
    Mutant("whoever was refused is read on", "hub/connection.py", "for _ in range(_MOST_AFTER):", "while True:",
           ("tests/controller/hub/test_limits.py", "-k", "not_read_for_long"),
           breaks="A tenant's pods cannot lock out another tenant's agents"),
    Mutant("every item of a long list is read", "hub/frames.py", "len(data) > LONG and", "False and",
           ("tests/controller/hub/test_frames.py", "-k", "too_long"), quick=True,
           breaks="No object and no number of them occupies the operator for long"),
    Mutant("a trainer that ended beside a sidecar runs on", "model/containers.py", "    if ended is not None:\n",
           "    if ended is not None and phase is not PodPhase.RUNNING:\n", ("tests/controller/model/test_observe.py",),
           quick=True),
    Mutant("a preflight is charged to the program", "failures/classify.py",
           "        blame=Blame.INFRASTRUCTURE,\n        fatal=False", "        blame=Blame.USER,\n        fatal=False",
           ("tests/controller/simulation/test_backoff.py", "-k", "preflight")),
    Mutant("free restarts are not waited for", "failures/backoff_rules.py", "return find_pause(failures, first=1.0, most=MAX_SECONDS)",
           "return min(0.0, MAX_SECONDS, 2.0)", ("tests/controller/simulation/test_backoff.py",)),
    # Ownership and limits.
    Mutant("any owner is a controller", "model/ownership.py", 'if reference.get("controller") and', "if", CACHE, quick=True,
           breaks="A worker is a pod that the operator created for this job"),
    Mutant("labels need not name the job's UID", "model/ownership.py",
           "(labels.get(names.LABEL_JOB), labels.get(names.LABEL_JOB_UID)) != (names.label(job), uid)",
           "labels.get(names.LABEL_JOB) != names.label(job)", CACHE,
           breaks="A worker is a pod that the operator created for this job"),
    Mutant("agents of a deleted namesake come in", "kube/cache.py", "and job[0].uid == pod.job_uid else None", "else None",
           CACHE, breaks="A worker is a pod that the operator created for this job"),
    Mutant("pods of any name are workers", "model/ownership.py",
           ' or metadata.get("name") != names.pod_name(job, index)', "", CACHE,
           breaks="A worker is a pod that the operator created for this job"),
    Mutant("what is refused is tried a thousand times", "apply/batches.py", "(goes_on or not errors) and ", "",
           ("tests/controller/apply/test_batches.py",), quick=True, breaks="One job cannot block the others"),
    Mutant("a spec may be of any depth", "api/bounds.py", "MOST_DEPTH = 64", "MOST_DEPTH = 64_000",
           ("tests/controller/model/test_reading.py",), quick=True, breaks="A bad object harms only itself"),
    Mutant("a status of another version is refused", "model/reading.py",
           "    rest = {name: value for name, value in raw.items() if name not in wrong}\n",
           "    rest = dict(raw)\n", ("tests/controller/model/test_reading.py",)),
    Mutant("restarts are not counted", "run/metrics.py", 'self.restarts.labels("user").inc(record.count)', "pass",
           ("tests/controller/run/test_metrics.py",)),
    # What SECURITY.md guarantees: each breaks one sentence of its table, and a test that the row names must notice.
    Mutant("the pod that a token claims is believed", "hub/auth.py", "        job = self._find_pod(bound",
           "        bound = claimed\n        job = self._find_pod(bound", AUTH, breaks="A pod cannot impersonate another pod"),
    Mutant("a token for anybody is good", "hub/auth.py", 'if names.TOKEN_AUDIENCE not in (status.get("audiences") or ()):',
           "if False:", AUTH, breaks="A pod cannot impersonate another pod"),
    Mutant("what was reviewed stays", "hub/auth.py", "return NO_WORKER if job is None else Identity(",
           "return Identity(", AUTH, breaks="The token of a deleted pod is useless"),
    Mutant("a token for a day", "apply/manifests/common.py", "token_seconds: int = 3600", "token_seconds: int = 86400",
           ("tests/manifests/test_rbac_pods.py",), breaks="A stolen token is of little use"),
    Mutant("old TLS", "hub/certificates.py", "ssl.TLSVersion.TLSv1_2", "ssl.TLSVersion.MINIMUM_SUPPORTED",
           ("tests/controller/hub/test_certificates.py",), breaks="Nobody can read the traffic with the hub"),
    Mutant("any number of silent sockets", "hub/server.py", "capacity=self._settings.max_pending_sockets,", "capacity=10**9,",
           ("tests/controller/hub/test_limits.py",), breaks="An unauthenticated client cannot exhaust the hub"),
    Mutant("first come, first served", "hub/admission.py",
           "return free >= wanted and own + wanted - 1 < greed * (free - wanted + 1)", "return free >= wanted", DOORS,
           breaks="A tenant's pods cannot lock out another tenant's agents"),
    Mutant("long messages are kept without a bound", "hub/registry.py",
           "if excess > before and not self.kept.enter(namespace, excess - before):", "if False:",
           ("tests/controller/hub/test_kept_messages.py",), breaks="A tenant's pods cannot lock out another tenant's agents"),
    Mutant("a pod whose trainer has ended holds nothing", "run/pooling.py", "pod.holds_resources and (stays",
           "not pod.terminal and (stays", ("tests/controller/run/test_pool_loop.py",),
           breaks="No job costs the pool more computing than others, or weighs more"),
    Mutant("a pod that has lost its label is gone for good", "kube/cache.py", "if not is_older(self._gone[uid], version):",
           "if True:", CACHE, breaks="A worker is a pod that the operator created for this job"),
    Mutant("failed tokens are read on", "hub/server.py", "if self._failures.is_spent(address, now):", "if False:", DOORS,
           breaks="A token that cannot belong to a worker does not reach the API server"),
    Mutant("expired tokens are reviewed", "hub/auth.py", "if not now < ends + _SKEW_SECONDS:", "if False:", AUTH,
           breaks="A token that cannot belong to a worker does not reach the API server"),
    Mutant("each pod may fill the log", "hub/agents.py", "        if not entry.notes.has(cost, rate, burst, now):\n",
           "        if not entry.notes.has(cost, rate, burst, now):\n            return True\n        if False:\n", DOORS,
           breaks="A worker cannot fill the operator's log"),
    Mutant("any number of probes", "run/http.py", "patience=PATIENCE, capacity=self._capacity", "patience=PATIENCE, capacity=10**9",
           METRICS, breaks="Connections that idle or read slowly cannot block the port for health and metrics, or fill the memory"),
    Mutant("messages of any size", "collectives/messages.py", "if not all(0 <= length <= MAX_BYTES for", "if not all(0 <= length for",
           ("tests/worker/collectives/test_messages.py",), package=RUNTIME,
           breaks="ElasticJob's own code unpickles nothing from the network"),
    Mutant("terminals obey pods", "text.py", 'return _CONTROL_BUT_LINES.sub("�", text)', "return text",
           ("tests/controller/cli/test_cli_view.py",), breaks="A job cannot send commands to the user's terminal"),
    Mutant("cp follows the links of a pod", "cli/launch/inside.py", "if member.issym():", "if False:",
           ("tests/launch/test_inside.py", "-k", "links_of_a_pod"), breaks="A pod cannot write into the files of who copies from it"),
    Mutant("links lead out", "launch/bundle.py", "    if place.is_symlink() and not", "    if False and not",
           ("tests/launch/test_bundle.py",), breaks="A code folder sends only its own files"),
    Mutant("a dashboard of any name", "dashboard/guard.py", "if host_name(asked.host) not in access.hosts:", "if False:", GUARD,
           breaks="A page or a server of somebody else cannot use the dashboard of a user"),
    Mutant("anybody's form is read", "dashboard/server.py", "if refusal is None and request.method", "if request.method", GUARD,
           breaks="A page or a server of somebody else cannot use the dashboard of a user"),
    Mutant("silent sockets stay", "dashboard/server.py", "for link in idle[", "for link in [][", ("tests/dashboard/test_connections.py",),
           breaks="Sockets that say nothing keep nobody from a dashboard"),
    Mutant("forms without a key", "dashboard/guard.py", "None if _equal(key, keys.form) else", "None if True else", GUARD,
           breaks="A page or a server of somebody else cannot use the dashboard of a user"),
    Mutant("numbers of any length", "numerals.py", "len(value) <= LONGEST and _DIGITS", "_DIGITS",
           ("tests/controller/model/test_foreign_numbers.py",), breaks="A number that a tenant writes costs no more than its text"),
    Mutant("agents write lines of the log", "text.py", 'return _CONTROL.sub(" ", cut(text, limit))', "return cut(text, limit)",
           ("tests/controller/hub/test_limits.py",), breaks="A worker cannot forge log lines"),
    Mutant("what is no HTTP is logged", "rest/http_log.py",
           "return not isinstance(error, http_exceptions.HttpProcessingError | web.RequestPayloadError)", "return True", ("tests/controller/hub/test_fuzz.py",), breaks="Whoever connects cannot fill the operator's log"),
    Mutant("an error tells the token", "hub/auth.py", 'could not be checked: %s", type(error).__name__)', 'could not be checked: %s", error)',
           AUTH, breaks="Tokens and keys never appear in logs, status or events"),
    Mutant("pods have a token of the API server", "apply/manifests/pods.py", 'body.setdefault("automountServiceAccountToken", False)',
           "pass", ("tests/manifests/test_rbac_pods.py",), breaks="A pod gets only what its template says"),
    Mutant("any exit code", "api/wire.py", "ExitCode = Annotated[int, Field(ge=-(2**31), le=2**31)]", "ExitCode = int",
           ("tests/controller/api/test_bounds.py",), breaks="No number or text of a pod makes its job's status unwritable"),
    Mutant("a refused field holds up the rest", "apply/apply.py", "if not left_out:", "if True:", APPLY,
           breaks="No number or text of a pod makes its job's status unwritable"),
    Mutant("one namespace is enough", "history/faulty_nodes.py", "WITNESSES: Final = 2", "WITNESSES: Final = 1",
           ("tests/controller/run/test_node_memory.py",), breaks="What a pod says of its node does not reach other namespaces"),
    Mutant("the loudest namespaces have the list", "history/faulty_nodes.py",
           "if len(records) <= MOST_NODES:\n        return list(records)", "if True:\n        return list(records[:MOST_NODES])",
           ("tests/controller/history/test_faulty_nodes.py",),
           breaks="What a pod says of its node does not reach other namespaces"),
    Mutant("a job ends the pool", "run/pooling.py", "except Exception:  # of one job,", "except ZeroDivisionError:  # of one job,",
           ("tests/controller/run/test_pool_loop.py",), breaks="A bad object harms only itself"),
    Mutant("a job ends the round", "pool/rounds.py", "except Exception as error:  # which", "except ZeroDivisionError as error:  # which",
           ("tests/controller/run/test_pool_loop.py", "-k", "cannot_be_computed"), breaks="A bad object harms only itself"),
    Mutant("lines weigh nothing", "plan/values.py", "items += 2 * len(state.signs)", "items += len(state.signs) // 8",
           ("tests/controller/plan/test_heavy_plans.py", "-k", "where_there_are_many"), breaks="No object and no number of them occupies the operator for long"),
    Mutant("any overhead", "api/podtemplate.py", '_check_amounts(spec.get("overhead") or {}, "spec.overhead")', "pass",
           ("tests/controller/run/test_pool_loop.py",), breaks="A bad object harms only itself"),
    Mutant("hearsay forbids nodes", "plan/plan.py",
           "hearsay = () if spec.health.avoid_nodes is api.AvoidNodes.REQUIRED else seen.suspected_nodes",
           "hearsay = seen.suspected_nodes", ("tests/controller/plan/test_plan.py",),
           breaks="What a pod says of its node does not reach other namespaces"),
    Mutant("events of any size", "run/quiet_pods.py", "MOST_BYTES = 256 * 1024", "MOST_BYTES = 2**30",
           ("tests/controller/run/test_quiet_pods.py",), breaks="What the operator keeps of an object of others is small, whatever is written into it"),
    Mutant("who wakes ten thousand jobs is served first", "run/controller.py", "self._order_of_asleep.push(key, key)",
           'self._order_of_asleep.push(("", ""), key)', ("tests/controller/run/test_turns_of_jobs.py", "-k", "many_that_are_woken"),
           breaks="News of pods do not slow the jobs of other namespaces"),
    Mutant("events are read as often as there are jobs", "run/quiet_pods.py", "if lists.may_read(job.namespace, time.monotonic()):",
           "if True:", ("tests/controller/run/test_quiet_pods.py",), breaks="One job cannot block the others"),
    Mutant("series for every node that was checked", "run/metrics.py", "while found and not room.enter(job[0], len(found)):", "while False:", METRICS,
           breaks="What a script reports becomes few series of Prometheus"),
    Mutant("a new page for everybody who reads", "run/http.py", "PATIENCE if is_full else _PAGE_SECONDS", "_PAGE_SECONDS", METRICS,
           breaks="Connections that idle or read slowly cannot block the port for health and metrics, or fill the memory"),
    Mutant("whole texts of pods", "model/containers.py", "LONGEST_MESSAGE = 320, 2048", "LONGEST_MESSAGE = 320, 2**30",
           ("tests/controller/model/test_small_snapshots.py",),
           breaks="What the operator keeps of an object of others is small, whatever is written into it"),
    Mutant("metadata of any size", "kube/listing.py", "_cut(data) if cut else data", "data",
           ("tests/controller/kube/test_listing.py", "-k", "metadata_cannot"), breaks="No object can stop the operator"),
    Mutant("the first job is decoded", "run/cluster.py", 'api.fetch(path, {"limit": "1"}, JSON)', 'api.request("GET", path, query={"limit": "1"})',
           ("tests/controller/run/test_first_job.py",), breaks="No object can stop the operator"),
    Mutant("whole Workloads", "integrations/kueue/values.py", "    if excess := _find_excess(size):", "    if _find_excess(size) and False:",
           ("tests/controller/model/test_small_snapshots.py", "-k", "too_large"),
           breaks="What the operator keeps of an object of others is small, whatever is written into it"),
    Mutant("any number of long Workloads", "integrations/kueue/store.py", "place.taken and not self._room.enter(namespace, place.taken)", "place.taken < 0",
           ("tests/controller/integrations/kueue/test_store.py", "-k", "bounded"),
           breaks="What the operator keeps of an object of others is small, whatever is written into it"),
    Mutant("labels of any number", "model/observe.py", "dict(itertools.islice(ours, MOST_MARKS))", "dict(ours)",
           ("tests/controller/model/test_small_snapshots.py", "-k", "of_a_job"),
           breaks="What the operator keeps of an object of others is small, whatever is written into it"),
    Mutant("whole texts of Workloads", "integrations/kueue/values.py", "            MOST_MESSAGE,", "            2**30,",
           ("tests/controller/integrations/kueue/test_quota.py", "-k", "cut_and_cleaned")),
    Mutant("all held pods at once", "run/overdue_pods.py", "MOST_AT_ONCE: Final = 50", "MOST_AT_ONCE: Final = 5000",
           ("tests/controller/run/test_held_pods.py",), breaks="A pod or a namespace that somebody keeps costs little, and is named"),
    Mutant("series for every name", "run/metrics.py", "MOST_NAMES, MOST_OF_A_NAMESPACE, _MOST_NAME = 8, 1000", "MOST_NAMES, MOST_OF_A_NAMESPACE, _MOST_NAME = 8000, 1000", METRICS,
           breaks="What a script reports becomes few series of Prometheus"),
    Mutant("every size is compared", "pool/rounds.py", "MOST_SIZES: Final = 200", "MOST_SIZES: Final = 200_000", ROUNDS,
           breaks="No job costs the pool more computing than others, or weighs more"),
    Mutant("a label hides a pod from the pool", "run/pooling.py", "for stranger in self._cache.strangers():", "for stranger in ():",
           ("tests/controller/run/test_pool_loop.py",), breaks="No job costs the pool more computing than others, or weighs more"),
    Mutant("who weighs most wins", "model/reading.py", "    if spec.scaling.weight <= limits.weight:\n", "    if True:\n",
           ("tests/controller/model/test_reading.py",), breaks="No job costs the pool more computing than others, or weighs more"),
    Mutant("pods without a policy", "apply/apply.py", "        if errors:\n            return errors\n", "", APPLY,
           breaks="No pod starts unguarded"),
    Mutant("a namespace may have all requests", "kube/fair_queue.py", "held[namespace] < min(self._share, self._free)",
           "True", FAIR, breaks="One job cannot block the others"),
    Mutant("what is urgent of a namespace may have all slots", "kube/fair_queue.py",
           "return self._share is None or", "return self._share is None or urgency is Urgency.NOW or", FAIR, breaks="One job cannot block the others"),
    Mutant("any number of pods of a job", "kube/cache.py", "if len(known) >= most and", "if len(known) >= 2**30 and",
           ("tests/controller/kube/test_cache.py",), breaks="No object and no number of them occupies the operator for long"),
    Mutant("two namespaces may have all requests", "kube/fair_queue.py", "min(self._share, self._free)", "self._share",
           FAIR, breaks="One job cannot block the others"),
    Mutant("what is urgent may have all slots", "kube/fair_queue.py", "if self._urgent.total() < self._most and ", "if ", FAIR,
           breaks="One job cannot block the others"),
    Mutant("a rule restarts its job without an end", "failures/incidents.py", "before.acted < rule.most", "True",
           ("tests/controller/simulation/test_health_rules.py",), breaks="What a rule of one job does concerns that job only"),
    Mutant("claims are counted by the namespace in them", "hub/auth.py", "self._unseen.enter(address)", "self._unseen.enter(pod.namespace)",
           DOORS, breaks="A tenant's pods cannot lock out another tenant's agents"),
    Mutant("a namespace may fill the log", "run/job_lines.py", "LINES_AT_ONCE, LINES_PER_SECOND = 500.0", "LINES_AT_ONCE, LINES_PER_SECOND = 5e9",
           ("tests/controller/run/test_job_lines.py",), breaks="A namespace cannot fill the operator's log"),
    Mutant("etcd asks nobody who he is", "flags.py", "        f\"--trusted-ca-file={pki / 'ca.crt'}\",\n        \"--client-cert-auth\",\n", "",
           ("tests/devcluster/test_devcluster_closed.py", "-k", "etcd"), package=DEVCLUSTER,
           breaks="Other users of a machine reach no devcluster"),
    Mutant("scripts measure anything", "api/wire.py", "Measured = Annotated[Annotated[float, Field(ge=0, le=MOST_MEASURED)] | None, BeforeValidator(_know)]",
           "Measured = float | None", ("tests/controller/model/test_extremes.py", "-k", "agents_message"),
           breaks="A hostile tenant leaves the jobs of others alone"),
    Mutant("a right that nothing needs", "templates/_rules.tpl", "  resources: [pods]\n  verbs: [get,", "  resources: [pods]\n  verbs: [deletecollection, get,",
           ("tests/manifests/test_rbac.py", "-k", "every_rule and cluster-wide"), package=CHART,
           breaks="The operator has exactly the permissions that it uses"),
    Mutant("a root file system to write to", "values.yaml", "readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false",
           ("tests/manifests/test_chart.py", "-k", "restricted"), package=CHART, breaks="The operator is confined"),
    Mutant("the latest base image", "Dockerfile", "@sha256:", ":", ("tests/test_generated.py", "-k", "pinned"), package=REPOSITORY,
           breaks="An image contains what was tested"),
    Mutant("objects in another namespace", "apply/manifests/common.py", '"namespace": job.namespace,', '"namespace": job.name,',
           ("tests/manifests/test_rbac_pods.py",), breaks="The operator never leaves the job's namespace"),
    Mutant("a digest before the suffix, where a name may have it", "api/names.py", 'end = f"{suffix}-{_digest(job)[:_DIGITS]}"',
           'end = f"-{_digest(job)[:_DIGITS]}{suffix}"', ("tests/controller/api/test_names.py", "-k", "called_after"), quick=True,
           breaks="The operator never takes over or deletes an object of others"),
    Mutant("a dashboard keeps whole jobs", "dashboard/server.py", "keep=summarize", "keep=lambda job: job",
           ("tests/dashboard/test_large_jobs.py", "-k", "board"), quick=True, breaks="A bad object harms only itself"),
    Mutant("a page in the cluster reads nothing deep", "dashboard/__main__.py", "sys.setrecursionlimit(DEEPEST_JSON)", "pass",
           ("tests/dashboard/test_large_jobs.py", "-k", "deep"), breaks="A bad object harms only itself"),
    Mutant("what has the right name is ours", "apply/apply.py",
           '        if ownership.owner_of(found["metadata"])[1] != job.uid:\n            raise refusals.name_taken(str(child.kind)',
           "        if False:\n            raise refusals.name_taken(str(child.kind)", (STRANGERS, "-k", "taken_name"),
           breaks="The operator never takes over or deletes an object of others"),
    Mutant("large jobs are planned in the event loop", "run/controller.py", "MOST_IN_LOOP = 500", "MOST_IN_LOOP = 10**9",
           ("tests/controller/plan/test_heavy_plans.py",), breaks="No object and no number of them occupies the operator for long"),
    Mutant("a policy that somebody has loosened", "model/child_objects.py", 'digest=digest if mark == sound else ""', "digest=digest",
           (STRANGERS, "-k", "loosened"), breaks="A modified policy is restored"),
    Mutant("each job of a namespace may have all the news it likes", "run/news.py",
           "if not has_own or not self._budgets[namespace].take(NAMESPACE_PER_SECOND, NAMESPACE_AT_ONCE, now):", "if not has_own:",
           ("tests/controller/run/test_news.py",), quick=True, breaks="News of pods do not slow the jobs of other namespaces"),
    Mutant("a job waits for the passes of all jobs of another namespace", "run/controller.py", "self._order = Slots(1)",
           "self._order = Slots(1_000)", ("tests/controller/run/test_turns_of_jobs.py", "-k", "waits_for_no_more"),
           breaks="News of pods do not slow the jobs of other namespaces"),
    Mutant("events without end", "plan/event_rate.py", "BURST = 50.0", "BURST = 5e9", ("tests/controller/plan/test_event_rate.py",),
           breaks="One job cannot block the others"),
    # The agent: its half of "no two worlds".
    Mutant("an agent runs on in a world that is over", "protocol/directives.py", "return generation <= directive.generation",
           "return generation < directive.generation", MODEL, True, RUNTIME),
    Mutant("an agent that comes back runs on", "agent/stages.py", "    over = rules.is_over(state, state.generation, now)\n",
           "    over = rules.is_over(state, state.generation, now) and not isinstance(state.hub.directive, wire.Regroup)\n",
           MODEL, package=RUNTIME),
    Mutant("a world is entered twice", "protocol/directives.py", "directive.generation <= generation",
           "directive.generation < generation", AGENT, package=RUNTIME),
    Mutant("ready with the store of the last world", "agent/stages.py",
           "    return state, (events.CloseStores(), events.OpenStore())\n", "    return state, ()\n", MODEL, True, RUNTIME),
    Mutant("a world of before our store is entered", "protocol/directives.py",
           "(store is None or directive.store.port != store.port)", "False", AGENT, package=RUNTIME),
    Mutant("nobody hears that a world is given up", "protocol/directives.py",
           "isinstance(directive, wire.Regroup) and directive.generation > generation", "False", MODEL, package=RUNTIME),
    Mutant("a late answer starts workers", "agent/machine.py", "state.stage is not Stage.ENTERING or ", "", AGENT,
           package=RUNTIME),
    Mutant("a world that was missed is not named", "agent/machine.py",
           "phase=wire.STOPPING, generation=world.generation, store=None", "phase=wire.STOPPING, store=None", AGENT,
           package=RUNTIME),
    Mutant("a store is opened while workers run", "agent/stages.py", "    if state.keeps_memory and state.all_idle:\n",
           "    if state.keeps_memory:\n", ORDERS, package=RUNTIME),
    Mutant("ready although a worker is dead", "agent/stages.py", "    if state.keeps_memory and not state.all_idle:",
           "    if False:", AGENT, package=RUNTIME),
    Mutant("workers are stopped while torch looks at them", "agent/stages.py",
           "    if not state.parked:\n        return state, ()\n    if state.granted", "    if state.granted", AGENT, True, RUNTIME),
    Mutant("that workers waited means that they cannot save", "agent/stages.py",
           "changes = {\"blocked\": False, ", "changes = {", AGENT, package=RUNTIME),
    Mutant("a usual rest is evidence", "channel/stillness.py", "FACTOR * self.rests[1]", "0.0",
           ("tests/worker/channel/test_stillness.py",), package=RUNTIME),
    Mutant("torch looks at workers that are being stopped", "agent/rules.py",
           "return state.stage in ending and not state.keeps_memory", "return False", AGENT, package=RUNTIME),
    Mutant("nobody hurries when a member is lost", "agent/rules.py", "return state.granted > 0 and", "return False and", AGENT,
           package=RUNTIME),
    Mutant("a pod that leaves waits for a hub that refuses it", "agent/rules.py", " or state.hub.rejected)", ")", AGENT,
           package=RUNTIME),
    Mutant("sessions that are being stopped are kept", "agent/machine.py", " or not runs:", ":", AGENT, package=RUNTIME),
    Mutant("a stop is no failure of the script", "agent/machine.py", "state.granted == 0 and event.found is not None",
           "event.found is None", AGENT, package=RUNTIME),
    # Sessions.
    Mutant("a world is left without an agreement", "sessions/machine.py", "    if state.size == 1 and state.is_over:\n",
           "    if state.is_over:\n", SESSION, True, RUNTIME),
    Mutant("an announced end is a loss", "sessions/machine.py", "            if announced:\n", "            if False:\n", SESSION,
           package=RUNTIME),
    Mutant("a session enters an old world", "sessions/machine.py", " or place.generation <= state.generation:", ":", SESSION,
           package=RUNTIME),
    Mutant("a loss is forgotten", "sessions/machine.py", "lost=max(state.lost, generation)", "lost=state.lost", SESSION,
           package=RUNTIME),
    Mutant("a step in part counts", "sessions/recovery.py", "if one.clean and (one.step", "if (one.step", RECOVERY, package=RUNTIME),
    Mutant("the oldest state counts", "sessions/recovery.py", "best = max(", "best = min(", RECOVERY, package=RUNTIME),
    Mutant("shards of two worlds make a model", "sessions/recovery.py", "if shard_inventory.world == world:", "if True:",
           RECOVERY, package=RUNTIME),
    Mutant("a step without its position counts", "sessions/recovery.py", "if self.clean and self.step >= 0:",
           "if self.step >= 0:", RECOVERY, package=RUNTIME),
    Mutant("a store that does not answer is waited for", "protocol/connecting.py", " and not interrupted() and time", " and time",
           CONNECTING, package=RUNTIME),
    Mutant("what torch's client waits for is not ended", "protocol/connecting.py", "            sockets.shut_down_to(", "            _ = (",
           CONNECTING, package=RUNTIME),
    Mutant("no last step, and it is waited for", "agent/stages.py", " and not any(one.error for one in state.idle)", "", AGENT,
           package=RUNTIME),
    Mutant("code of ours is interrupted", "sessions/interrupt.py", " and not _is_own(frame)", "", INTERRUPT, package=RUNTIME),
    # Checkpoints that peers hold.
    Mutant("an older report confirms a record", "peers/lead.py", "min(self._rounds.values()) < self.round", "False", PEERS,
           package=RUNTIME),
    Mutant("files of one save are finished one by one", "peers/watch.py", "            if not unready.isdisjoint(save):",
           "            if False:", HELD, package=RUNTIME),
    Mutant("the part of a lost pod is not missed", "peers/entering.py", "all_there=all_there)", "all_there=True)", HELD,
           package=RUNTIME),
    Mutant("who writes a file keeps no copy", "peers/keeper.py", "                self.directory.hold(digest)\n", "                pass\n", HELD,
           package=RUNTIME),
    # Scripts that are drawn.
    Mutant("a suspend lets nobody save", "protocol/directives.py", "isinstance(directive, wire.Regroup | wire.Stop) and directive.checkpoint",
           "isinstance(directive, wire.Regroup) and directive.checkpoint", SUSPENDED, package=RUNTIME),
    Mutant("what a step changes early is not taken back", "sessions/session.py", "        elif not self._early.take_back():\n            self._memory.note_torn()\n",
           "", TUTORIALS, package=RUNTIME),
    Mutant("what changes early in a later step through .data is not seen", "sessions/early.py",
           "if self._spots is not None and self._words is not None:", "if False:",
           ("tests/worker/sessions/test_early.py", "-k", "first_change"), package=RUNTIME),
    # The archive.
    Mutant("what the store returns in part is restored", "archive/reading.py",
           "        if all(digest_of(chunk) == digest for digest, chunk in found.items()):", "        if True:", IN_PART,
           package=RUNTIME),
    Mutant("a save that is not whole counts", "archive/garbage.py",
           "if name in self.listed and is_whole(save, self.sizes):", "if True:", KEPT, package=RUNTIME),
    Mutant("an old leader goes on", "archive/writing.py", "if any(lead is not None and lead > self._generation",
           "if False and any(lead", TWO_WRITERS, package=RUNTIME),
    Mutant("what others delete is built on", "archive/writing.py",
           "self._told, self._told_names = reading.find_told(self._storage)  # after the claim: see `garbage`",
           "self._told, self._told_names = Doomed(), []", TWO_WRITERS, package=RUNTIME),
)  # fmt: skip


def kill(mutant: Mutant, directory: Path) -> str:
    """ "" if the suite detected the mistake, otherwise the problem."""
    copy = directory / mutant.name.replace(" ", "-")
    if mutant.is_imported:
        source, place = Path(mutant.package).parent, ROOT  # what is on the path
        shutil.copytree(ROOT / source, copy)
    else:
        source, place = Path(), copy
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "__pycache__"))
    file = copy / mutant.file.relative_to(source)
    text = file.read_text()
    if text.count(mutant.old) < 1:
        return f"{mutant.name}: the text to replace is not in {mutant.module} any more"
    file.write_text(text.replace(mutant.old, mutant.new))
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *mutant.suite],
        cwd=place, env=os.environ | {"PYTHONPATH": str(copy)} if mutant.is_imported else None, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    if result.returncode == 1:
        return ""
    return f"{mutant.name}: survived ({result.returncode}): {result.stdout[-300:]}"
