"""Malicious or malformed objects of a tenant, of every watched kind: a pure function of a seed.

Each states whether the operator has to name it: in a warning, or for a job in a condition. Objects that the API server
rejects are harmless; the generator does not know which ones those are.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from chaos import extremes
from costly_rules import costly_rules
from elasticjob_operator import api
from elasticjob_operator.api import names
from elasticjob_operator.api.crd import structural_schema

Object = dict[str, Any]
GROUP = f"/apis/{names.API_VERSION}"
ESCAPES = "\x1b]52;c;aGFybQ==\x07\x1b[2J\x1b]0;title\x07\x9b31m\u202e\u061c\u200b[bold]"
MANAGED = {names.LABEL_APP: names.LABEL_APP_VALUE}
NOWHERE = {"kubernetes.io/hostname": "nowhere"}  # no node takes such a pod: what counts is the object
DEEP = "lists in lists"
BIG = 1_040_000  # bytes; the store takes up to 1.5 MB


@dataclass(frozen=True, slots=True)
class Prey:
    """A job of the same tenant, whose labels and UID are stolen."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Hostile:
    """One object: where it is created, its content, and what is written to its status afterwards."""

    case: str
    collection: str
    body: Object
    named: bool = False  # whether the operator has to say that something is wrong with it
    status: Object = field(default_factory=dict)
    depth: int = 0  # of the lists in the place of `DEEP`: too many for Python to write by itself

    @property
    def name(self) -> str:
        found: str = self.body["metadata"]["name"]
        return found

    @property
    def text(self) -> bytes:
        """What is sent."""
        return json.dumps(self.body).replace(json.dumps(DEEP), "[" * self.depth + "]" * self.depth).encode()

    @property
    def kind(self) -> str:
        return self.case.partition("/")[0]

    @property
    def path(self) -> str:
        return f"{self.collection}/{self.name}"


LABELS = (3_000, 80_000)
Case = Callable[[random.Random, str, Prey], Hostile]


def make_all(seed: int, prey: Prey, count: int = 0) -> Iterator[Hostile]:
    """Every case once, in an order that depends on the seed; or `count` objects, with repeated or missing cases."""
    dice = random.Random(seed)
    order = dice.sample(CASES, len(CASES))
    for number in range(count or len(CASES)):
        case = order[number] if number < len(order) else dice.choice(CASES)
        label = case.__name__.removeprefix("_").replace("_", "-")
        yield case(dice, f"h{seed}-{number}-{label}"[:48], prey)


def read(text: bytes) -> Object:
    """An object as returned by the API, without lists that Python cannot parse."""
    found: Object = json.loads(re.sub(rb"\[{100,}\]{100,}", b"0", text))
    return found


def metadata(name: str, **more: Any) -> Object:
    return {"name": name, **more}


def many_labels(dice: random.Random) -> dict[str, str]:
    """Few bytes each, so an object may have more of them than anybody reads."""
    return {f"l{number}": "" for number in range(dice.choice(LABELS))}


# --- jobs ----------------------------------------------------------------------------------------------------------


def job(case: str, name: str, prey: Prey, spec: Object, **more: Any) -> Hostile:
    annotations = {"annotations": more.pop("annotations", {})}
    body = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata(name, **annotations)}
    path = f"{GROUP}/namespaces/{prey.namespace}/{names.PLURAL}"
    return Hostile(f"ElasticJob/{case}", path, {**body, "spec": spec}, **more)


def spec_of(pod: Object | None = None, container: Object | None = None, **fields: Any) -> Object:
    """A spec that is valid except for the given fields; its pods are never scheduled."""
    one = {"name": "w", "image": "none/none:1", "command": ["true"], **(container or {})}
    template = {"spec": {"containers": [one], "nodeSelector": NOWHERE, **(pod or {})}}
    return {"replicas": 1, "elasticPolicy": {"minReplicas": 1, "maxReplicas": 2}, "template": template, **fields}


def _job_deep(dice: random.Random, name: str, prey: Prey) -> Hostile:
    return job("deep", name, prey, spec_of(pod={"x": DEEP}), depth=dice.choice((600, 1_200, 4_000)), named=True)


def _job_huge(dice: random.Random, name: str, prey: Prey) -> Hostile:
    env = [{"name": f"V{dice.randrange(10)}", "value": "b"}] * 36_000
    return job("huge", name, prey, spec_of(container={"env": env}), named=True)


def _job_huge_escaped(dice: random.Random, name: str, prey: Prey) -> Hostile:
    """Few bytes for the store, six times as many in each event of a watch."""
    return job("huge-escaped", name, prey, spec_of(), annotations={"x": dice.choice("<>&") * 250_000})


def _job_many_labels(dice: random.Random, name: str, prey: Prey) -> Hostile:
    """Nothing of it can be read but its name: what is decoded has a limit."""
    labels = many_labels(dice)
    made = job("many-labels", name, prey, spec_of(), named=len(labels) == max(LABELS))
    return replace(made, body=made.body | {"metadata": metadata(name, labels=labels)})


def _job_many_replicas(dice: random.Random, name: str, prey: Prey) -> Hostile:
    many = dice.choice((5_000, 100_000, 2**31 - 1))
    spec = spec_of(replicas=many, elasticPolicy={"minReplicas": 1, "maxReplicas": many})
    return job("many-replicas", name, prey, spec, named=True)


def _job_shapes(dice: random.Random, name: str, prey: Prey) -> Hostile:
    """A template whose parts have another shape than a pod's."""
    wrong: Object = dice.choice(
        ({"spec": {"containers": 5}}, {"spec": ["x"]}, {"metadata": ["x"], "spec": {"containers": [{"name": "w"}]}},
         {"spec": {"containers": [{"name": {"x": 1}}]}}, {"spec": {"containers": [["w"]]}}, {"spec": {}})
    )  # fmt: skip
    return job("shapes", name, prey, {**spec_of(), "template": wrong}, named=True)


def _job_far_numbers(dice: random.Random, name: str, prey: Prey) -> Hostile:
    policy = {"maxRestarts": 2**31 - 1, "scaleUpDelaySeconds": 2**31 - 1, "minReplicas": 1, "maxReplicas": 2}
    run = {"activeDeadlineSeconds": dice.choice((2**40, 2**53)), "ttlSecondsAfterFinished": 2**40}
    return job("far-numbers", name, prey, spec_of(elasticPolicy=policy, runPolicy=run))


def _job_unknown_field(dice: random.Random, name: str, prey: Prey) -> Hostile:
    return job("unknown-field", name, prey, spec_of(**{f"field{dice.randrange(99)}": {"x": [1]}}))  # it is pruned


def _job_long_name(dice: random.Random, name: str, prey: Prey) -> Hostile:
    length = dice.choice((64, 200, 253))  # a label takes 63, and a pod's name is longer than its job's
    return job("long-name", f"{name}-{'x' * length}"[:length].rstrip("-"), prey, spec_of(), named=True)


def _job_longest_label(dice: random.Random, name: str, prey: Prey) -> Hostile:
    """As long as it may be."""
    return job("longest-label", f"{name}-{'x' * 63}"[: dice.choice((52, 54))], prey, spec_of())


def _job_dots(dice: random.Random, name: str, prey: Prey) -> Hostile:
    return job("dots", f"{name}.{dice.randrange(99)}.a", prey, spec_of())


def _job_escapes(dice: random.Random, name: str, prey: Prey) -> Hostile:
    """Control characters wherever the API takes any text."""
    spec = spec_of(container={"args": [ESCAPES], "env": [{"name": "X", "value": ESCAPES}]})
    spec["template"]["metadata"] = {"annotations": {"x": ESCAPES}}
    notes = {"a": ESCAPES, names.ANNOTATION_TRAINER: f"{ESCAPES}{dice.random()}"}
    return job("escapes", name, prey, spec, annotations=notes)


def _job_rules(dice: random.Random, name: str, prey: Prey) -> Hostile:
    """Expressions that take as long as any to check, and that no other job has."""
    return job("rules", name, prey, spec_of(health={"rules": costly_rules(f"z{dice.randrange(99)}")}))


FIELDS = (*extremes.list_fields(structural_schema(api.Spec)), *extremes.TEMPLATE)


def _job_drawn(dice: random.Random, name: str, prey: Prey) -> Hostile:
    """One or two fields of the API with extremes; most of these the API server refuses."""
    _, spec = extremes.draw(dice, spec_of(), list(FIELDS), dice.choice((1, 1, 2)))
    return job("drawn", name, prey, spec)


def _job_metadata(dice: random.Random, name: str, prey: Prey) -> Hostile:
    """Annotations that the operator reads, and that anybody may write."""
    scaling = {"mode": dice.choice(("Goodput", "Fixed"))}
    return job("metadata", name, prey, spec_of(scaling=scaling), annotations=extremes.draw_metadata(dice, 2))


def greedy_spec() -> Object:
    """Of a job that costs its author one sleeping pod, and lets the pool compare as many sizes as a job may have.

    It has as many rules as it may, with the longest expressions.
    """
    container = {"command": ["sleep", "infinity"], "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    spec = spec_of(
        {"terminationGracePeriodSeconds": 0, "nodeSelector": {}},
        container,
        scaling={"mode": "Goodput"},
        rendezvous={"backend": "c10d"},  # its pods count as a world without an agent
        health={"rules": costly_rules()},
        elasticPolicy={"minReplicas": 1, "maxReplicas": 5_000},
    )
    del spec["replicas"]  # it is the pool's to say
    return spec


WRONG_STATUS: tuple[Object, ...] = (
    {"startTime": "yesterday"},
    {"goodput": {"since": "\x1b[31mnever", "training": True}},
    {"rendezvous": {"formedTime": "99999-01-01T00:00:00Z", "generation": 3}},
    {"restarts": {"lastTime": "x", "windowStart": "y", "total": -5, "user": 2**53}},
    {"conditions": [{"type": "Running", "status": "True", "lastTransitionTime": "soon"}]},
    {"nodeFaults": [{"node": "a", "count": 9, "lastTime": "then"}]},
    {"capacity": {"withdrawn": 1, "attempts": 1, "retryTime": "later"}},
    {"lastFailure": {"message": ESCAPES, "logTail": ESCAPES * 50, "time": "\x9b"}},
)
ODD_STATUS: tuple[Object, ...] = (
    {"completionTime": "when it is done", "conditions": [{"type": "Complete", "status": "True"}]},
    {"rendezvous": {"generation": 2**62, "worldSize": -3, "members": []}},
    {"rendezvous": {"generation": -7, "members": [{"pod": "x", "rank": 2**40, "uid": "", "nproc": -1}]}},
    {"conditions": [{"type": ESCAPES[:20], "status": "True", "reason": ESCAPES, "message": ESCAPES}]},
    {"restarts": {"counted": ["x" * 40] * 2_000}, "progress": {"step": -1, "percentage": 2**50}},
    {"goodput": {"trainingSeconds": 1e308, "lostSeconds": -1e308, "rescales": -1}},
    {"notKnown": {"x": 1}, "rendezvous": {"notKnown": [1]}},
)


def _job_wrong_status(dice: random.Random, name: str, prey: Prey) -> Hostile:
    """Written by somebody who may: the schema takes it, and no operator of ours writes such a thing."""
    return job("wrong-status", name, prey, spec_of(), status=dice.choice(WRONG_STATUS), named=True)


def _job_odd_status(dice: random.Random, name: str, prey: Prey) -> Hostile:
    return job("odd-status", name, prey, spec_of(), status=dice.choice(ODD_STATUS))


# --- pods ----------------------------------------------------------------------------------------------------------


def stolen(prey: Prey, index: str = "0") -> dict[str, str]:
    return {**MANAGED, names.LABEL_JOB: prey.name, names.LABEL_JOB_UID: prey.uid, names.LABEL_INDEX: index}


def owner(uid: str, name: str, kind: str = names.KIND, **more: Any) -> list[Object]:
    version = names.API_VERSION if kind == names.KIND else "v1"
    return [{"apiVersion": version, "kind": kind, "name": name, "uid": uid, **more}]


def pod(case: str, name: str, prey: Prey, status: Object | None = None, **meta: Any) -> Hostile:
    spec = {"containers": [{"name": "w", "image": "none/none:1"}], "nodeSelector": NOWHERE}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata(name, **meta), "spec": spec}
    return Hostile(f"Pod/{case}", f"/api/v1/namespaces/{prey.namespace}/pods", body, True, status or {})


def _pod_stolen_labels(dice: random.Random, name: str, prey: Prey) -> Hostile:
    return pod("stolen-labels", name, prey, labels=stolen(prey, dice.choice(("0", "1", "7"))))


def _pod_other_uid(dice: random.Random, name: str, prey: Prey) -> Hostile:
    labels = {**stolen(prey, dice.choice(("0", "1"))), names.LABEL_JOB_UID: "nonsense"}
    return pod("other-uid", name, prey, labels=labels)


def _pod_not_controlled(dice: random.Random, name: str, prey: Prey) -> Hostile:
    """It names the job as an owner that does not control it."""
    owners = owner(prey.uid, prey.name)
    if dice.random() < 0.5:
        owners[0]["controller"] = False
    return pod("not-controlled", name, prey, labels=stolen(prey), ownerReferences=owners)


def _pod_other_name(dice: random.Random, name: str, prey: Prey) -> Hostile:
    """All of it is right but the name."""
    owners = owner(prey.uid, prey.name, controller=True)
    return pod("other-name", name, prey, labels=stolen(prey, dice.choice(("0", "3"))), ownerReferences=owners)


def _pod_odd_index(dice: random.Random, name: str, prey: Prey) -> Hostile:
    index = dice.choice(("", "x", "007", "9" * 63, "1e3", "0x1"))
    return pod("odd-index", name, prey, labels=stolen(prey, index))


def _pod_odd_phase(dice: random.Random, name: str, prey: Prey) -> Hostile:
    status = dice.choice(
        (
            {"phase": "Gone"},
            {"phase": "Failed", "message": ESCAPES, "reason": ESCAPES},
            {"conditions": [{"type": ESCAPES[:30], "status": "Perhaps", "message": "x" * 200_000}]},
            {"conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "0001-01-01T00:00:01Z"}]},
        )
    )
    return pod("odd-status", name, prey, status, labels=stolen(prey))


def _pod_metadata(dice: random.Random, name: str, prey: Prey) -> Hostile:
    """Claims to be a worker, with annotations as the operator writes them."""
    return pod("metadata", name, prey, labels=stolen(prey), annotations=extremes.draw_metadata(dice, 2))


def _pod_many_labels(dice: random.Random, name: str, prey: Prey) -> Hostile:
    return pod("many-labels", name, prey, labels=stolen(prey) | many_labels(dice))


def _pod_huge(dice: random.Random, name: str, prey: Prey) -> Hostile:
    return pod("huge", name, prey, labels=stolen(prey), annotations={"x": dice.choice("<&") * 250_000})


# --- everything else -----------------------------------------------------------------------------------------------

CHILDREN: Mapping[str, tuple[str, str, Object]] = {
    "ConfigMap": ("/api/v1", "configmaps", {"data": {"ca.crt": ESCAPES.replace("\x9b", "")}}),
    "Service": ("/api/v1", "services", {"spec": {"clusterIP": "None", "selector": {"x": "y"}}}),
    "NetworkPolicy": ("/apis/networking.k8s.io/v1", "networkpolicies", {"spec": {"podSelector": {}}}),
    "PodDisruptionBudget": ("/apis/policy/v1", "poddisruptionbudgets", {"spec": {"minAvailable": 1}}),
}


def child(kind: str, case: str, name: str, prey: Prey, named: bool = True, **parts: Any) -> Hostile:
    version, plural, rest = CHILDREN[kind]
    meta = metadata(name, **parts.pop("meta", {}))
    body = {"apiVersion": version.rpartition("/apis/")[2].rpartition("/api/")[2], "kind": kind, "metadata": meta}
    return Hostile(f"{kind}/{case}", f"{version}/namespaces/{prey.namespace}/{plural}", body | rest | parts, named)


def _config_map_huge(dice: random.Random, name: str, prey: Prey) -> Hostile:
    return child("ConfigMap", "huge", name, prey, meta={"labels": MANAGED}, data={"x": dice.choice("<>&") * BIG})


def _stolen_labels(dice: random.Random, prey: Prey) -> Object:
    return {"labels": stolen(prey)}


def _foreign_owner(dice: random.Random, prey: Prey) -> Object:
    """It says that it belongs to a job, but to none that exists, or to none that would have it."""
    uid = dice.choice((prey.uid, "00000000-0000-0000-0000-000000000001"))
    return {"labels": {**stolen(prey), names.LABEL_JOB: "x"}, "ownerReferences": owner(uid, prey.name)}


def _huge(dice: random.Random, prey: Prey) -> Object:
    return {"labels": stolen(prey), "annotations": {"x": dice.choice("<>&") * 250_000}}


def _many_labels(dice: random.Random, prey: Prey) -> Object:
    return {"labels": stolen(prey) | many_labels(dice)}


def _child_of(kind: str) -> Case:
    """An object of this kind in each round, so that no kind depends on the dice."""

    def case(dice: random.Random, name: str, prey: Prey) -> Hostile:
        claim = dice.choice((_stolen_labels, _foreign_owner, _huge, _many_labels))
        return child(kind, claim.__name__.strip("_").replace("_", "-"), name, prey, meta=claim(dice, prey))

    case.__name__ = f"_{kind.lower()}"
    return case


def _node(dice: random.Random, name: str, prey: Prey) -> Hostile:
    """Odd, not wrong. Whoever makes nodes is no tenant; nodes are watched all the same."""
    taints = [{"key": "x/" + "k" * 63, "value": "v" * 63, "effect": "NoExecute"}, {"key": "a", "effect": "NoSchedule"}]
    conditions = [{"type": "Ready", "status": dice.choice(("Maybe", "False", ESCAPES)), "message": ESCAPES}]
    meta = metadata(name, annotations=extremes.draw_metadata(dice, 2))
    body = {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {"taints": taints}}
    return Hostile("Node/odd", "/api/v1/nodes", body, status={"conditions": conditions})


CASES: tuple[Case, ...] = (
    _job_deep, _job_huge, _job_huge_escaped, _job_many_labels, _job_many_replicas, _job_shapes, _job_far_numbers,
    _job_unknown_field, _job_rules,
    _job_long_name, _job_longest_label, _job_dots, _job_escapes, _job_wrong_status, _job_odd_status,
    *(_job_drawn,) * 6, _job_metadata, _pod_metadata,
    _pod_stolen_labels, _pod_other_uid, _pod_not_controlled, _pod_other_name, _pod_odd_index, _pod_odd_phase,
    _pod_huge, _pod_many_labels, _config_map_huge, *(_child_of(kind) for kind in CHILDREN), _node,
)  # fmt: skip


def as_policy_beta(made: Hostile) -> Hostile:
    """For clusters that serve budgets in the older version."""
    body = made.body | {"apiVersion": "policy/v1beta1"}
    return replace(made, collection=made.collection.replace("policy/v1/", "policy/v1beta1/"), body=body)
