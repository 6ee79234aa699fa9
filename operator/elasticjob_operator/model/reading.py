"""Parses the spec and status of one ElasticJob, whatever is stored in them, and collects warnings for its user. Pure.

Nothing here raises because of an object's content. In a spec, an invalid field is a problem (the job cannot run), and
an unknown field is ignored with a warning. In a status, an invalid field that is only informative gets its default; one
that decisions depend on is listed in `unread`, and the job is left untouched, because it may have a running world.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import ValidationError

from elasticjob_operator import api, text
from elasticjob_operator.api import bounds, podtemplate
from elasticjob_operator.model import contradictions, launchers, misspelt, own_size
from elasticjob_operator.templates import taking
from elasticjob_operator.untyped import as_object

T = TypeVar("T")

# Status fields that decide who is in the world, what is charged to the budget, where the job begins, and whether it has
# finished.
DECIDING = frozenset(
    {"rendezvous", "restarts", "conditions", "startTime", "completionTime", "inForce", "template", "origin"}
)
MOST_NAMED = 5  # fields that one warning names
MOST_TOLD = 4096  # characters that are kept of all warnings about a spec, and of all its problems: as a condition has
FORBIDDEN = "CreateForbidden"  # the reason of a condition: the API server refuses pods, for a quota mostly


@dataclass(frozen=True, slots=True)
class Notice:
    """A warning for the user that does not stop the job."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class SpecRead:
    spec: api.Spec | None  # None if it is invalid
    problems: tuple[api.Problem, ...] = ()
    notices: tuple[Notice, ...] = ()
    awaited: taking.Awaited | None = None  # the template without which it cannot be read
    own_replicas: int | None = None  # the number in spec.replicas, if it is the operator's


@dataclass(frozen=True, slots=True)
class StatusRead:
    status: api.Status
    raw: Mapping[str, Any]
    unread: tuple[str, ...] = ()  # fields that decisions depend on and that could not be parsed
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True, slots=True)
class Basis:
    """What a spec is read from, the cheapest to compare first.

    The generation changes with each change of a spec, and with nothing else: by equality alone, `1` is `True`. The text
    is compared all the same, since another CRD may have given it another default.
    """

    generation: object
    is_started: bool
    is_fresh: bool
    is_finished: bool
    limits: bounds.Limits
    size: own_size.Evidence
    template: api.TemplateStatus | None
    in_force: api.InForceStatus | None
    processes: int | None
    written: object


@dataclass(frozen=True, slots=True)
class Asked:
    """What a job asks for, with the spec that is in force for its running world."""

    basis: Basis
    read: SpecRead
    spec: api.Spec | None
    notices: tuple[Notice, ...]


# --- spec ------------------------------------------------------------------------------------------------


def read_asked(
    written: object,
    limits: bounds.Limits,
    status: api.Status,
    metadata: Mapping[str, Any],
    before: Asked | None,
) -> Asked:
    """Read the spec, unless it is the one that was read before: most changes of a job are those of its status."""
    basis = Basis(
        generation=metadata.get("generation"),
        is_started=status.start_time is not None,
        is_fresh=status.is_fresh,
        is_finished=status.finished,
        limits=limits,
        size=own_size.find_evidence(metadata),
        template=status.template,
        in_force=status.in_force,
        processes=status.nproc_per_node,
        written=written,
    )
    # Nobody has checked how deep an invalid one is, which is compared with nothing.
    if before is not None and before.spec is not None and before.basis == basis:
        return before
    read = read_spec(written, limits, status, metadata)
    spec, waiting = keep_in_force(read.spec, status) if read.spec else (None, ())
    pruned = find_pruned(as_object(metadata.get("annotations")), written)
    if spec is None:
        basis = replace(basis, written=None)  # it may have any size
    # What is told is kept beside the spec, also of a job whose spec is not.
    notices = _cut_notices((*waiting, *read.notices, *pruned))
    return Asked(basis, replace(read, problems=_cut_problems(read.problems), notices=()), spec, notices)


def _cut_notices(notices: Iterable[Notice]) -> tuple[Notice, ...]:
    kept, left = list[Notice](), MOST_TOLD
    for one in notices:
        if left > 0:
            kept.append(replace(one, message=text.cut(one.message, left)))
        left -= len(one.message)
    return tuple(kept)


def _cut_problems(problems: Iterable[api.Problem]) -> tuple[api.Problem, ...]:
    """The first ones: each is short, and there may be thousands."""
    kept, left = list[api.Problem](), MOST_TOLD
    for one in problems:
        if left > 0:
            kept.append(one)
        left -= len(str(one))
    return tuple(kept)


def read_spec(
    written: object, limits: bounds.Limits, status: api.Status, metadata: Mapping[str, Any] = MappingProxyType({})
) -> SpecRead:
    """Parse a spec and the template that it took, as far as this version knows their fields.

    By its metadata, a number in `spec.replicas` may be the operator's. The spec is then read as its user wrote it.
    """
    problems = _find_excess(written, limits)
    if problems or not isinstance(written, dict):
        return SpecRead(None, problems or (api.Problem(field="spec", message="is required: set spec.template"),))
    awaited = taking.find_awaited(written, status)
    if awaited is not None:
        return SpecRead(None, awaited=awaited)
    raw = taking.complete(written, status)
    own = own_size.find_own(metadata, raw)
    if own is None:
        return _read(raw, limits, status)
    read = _read({name: value for name, value in raw.items() if name != "replicas"}, limits, status)
    spec = read.spec
    if spec is None:
        return replace(read, own_replicas=own)
    if spec.is_pooled or spec.elastic_policy.metrics:  # it was chosen for the job, and not for want of another
        return replace(read, spec=_bounded(spec, own, limits) or spec, own_replicas=own)
    if spec.wanted != own and own_size.is_in_file(metadata, own):
        return _read(raw, limits, status)
    return replace(read, own_replicas=own)


def _read(raw: dict[str, Any], limits: bounds.Limits, status: api.Status) -> SpecRead:
    unknown = api.find_unknown(raw)
    known = api.without(raw, unknown)
    notices = _warn_of_unknown(unknown)
    try:
        written_spec = api.parse_spec(known)
    except api.InvalidJobError as error:
        return SpecRead(_with_bounded_replicas(known, limits), error.problems, notices)
    spec = _cap_weight(written_spec, limits)
    too_many = find_too_many(spec, limits)
    if too_many is not None:
        return SpecRead(
            _bounded(spec, spec.wanted, limits) if status.start_time is not None else None, (too_many,), notices
        )
    misspelt_fields = _name_some(list(misspelt.find_misspelt(spec.template)))
    contradicting = tuple(Notice(one.reason, one.message) for one in contradictions.find_contradictions(spec))
    warnings = (
        *((Notice("UnknownField", misspelt_fields),) if misspelt_fields else ()),
        *_find_silent_fallbacks(spec),
        *_find_foreign_launcher(spec),
        *contradicting,
        *_find_capped(written_spec, limits),
    )
    return SpecRead(spec, (), (*notices, *warnings))


def _find_excess(raw: object, limits: bounds.Limits) -> tuple[api.Problem, ...]:
    """Check depth and size before any recursive parsing."""
    if not isinstance(raw, dict):
        return ()
    advice = "move large texts into a ConfigMap, or ask the administrator to raise the limit (--max-template-bytes)"
    template = bounds.find_excess(raw.get("template"), limits.template_bytes, advice)
    if template:
        return (api.Problem(field="spec.template", message=template),)
    rest = {name: value for name, value in raw.items() if name != "template"}
    excess = bounds.find_excess(rest, bounds.MOST_SPEC_BYTES, "shorten its texts and lists")
    return (api.Problem(field="spec", message=excess),) if excess else ()


def find_too_many(spec: api.Spec, limits: bounds.Limits) -> api.Problem | None:
    """The problem if the job asks for more pods than one job may have."""
    spares = spec.elastic_policy.spares
    most = spec.max_replicas if spec.is_pooled else spec.wanted  # the pool gives as many as there may be
    if most + spares <= limits.replicas:
        return None
    field = "spec.replicas" if spec.replicas == most else "spec.elasticPolicy.maxReplicas"
    also = f" and {spares} spares" if spares else ""
    return api.Problem(
        field=field,
        message=f"asks for {most} pods{also}; one job may have at most {limits.replicas}: "
        "lower it, or ask the administrator to raise the limit (--max-replicas-per-job)",
    )


def _with_bounded_replicas(raw: Mapping[str, Any], limits: bounds.Limits) -> api.Spec | None:
    """The spec with `replicas` clamped to its bounds, if that is the only thing wrong with it.

    An API server without CEL lets `kubectl scale` write any number, which must not fail a job.
    """
    wanted = raw.get("replicas")
    if not isinstance(wanted, int):
        return None
    try:
        rest = api.parse_spec({k: v for k, v in raw.items() if k != "replicas"})
    except api.InvalidJobError:
        return None
    return _bounded(_cap_weight(rest, limits), wanted, limits)


def _bounded(spec: api.Spec, wanted: int, limits: bounds.Limits) -> api.Spec | None:
    most = min(spec.max_replicas, limits.replicas - spec.elastic_policy.spares)
    if most < spec.min_replicas:
        return None
    return spec.model_copy(update={"replicas": min(most, max(spec.min_replicas, wanted))})


def _find_capped(spec: api.Spec, limits: bounds.Limits) -> tuple[Notice, ...]:
    weight = spec.scaling.weight
    if not spec.is_pooled or weight <= limits.weight:
        return ()
    message = f"spec.scaling.weight is {weight}, and counts as {limits.weight}: the administrator allows no more"
    return (Notice("WeightCapped", f"{message} (--max-pool-weight)"),)


def _cap_weight(spec: api.Spec, limits: bounds.Limits) -> api.Spec:
    if spec.scaling.weight <= limits.weight:
        return spec
    return spec.model_copy(update={"scaling": spec.scaling.model_copy(update={"weight": limits.weight})})


def _warn_of_unknown(unknown: list[api.Path]) -> tuple[Notice, ...]:
    if not unknown:
        return ()

    def tell(path: api.Path) -> str:
        return f"{api.spell('spec', path)[:200]} is unknown to this version and ignored: {api.advise(path)}"

    return (Notice("UnknownField", _name_some(unknown, tell)),)


def _name_some(found: Sequence[T], tell: Callable[[T], str] = str) -> str:
    """What is to be told of the first ones: there may be thousands, and to find advice for one of them takes long."""
    more = [f"and {len(found) - MOST_NAMED} more"] if len(found) > MOST_NAMED else []
    return "; ".join([*map(tell, found[:MOST_NAMED]), *more])


def _find_silent_fallbacks(spec: api.Spec) -> tuple[Notice, ...]:
    if spec.nproc_per_node not in ("auto", "gpu"):
        return ()
    claims = podtemplate.find_claims(spec.template)
    if claims:
        message = (
            f"spec.nprocPerNode is {spec.nproc_per_node}, and each of the trainer's resource claims "
            f"({', '.join(claims[:MOST_NAMED])}) counts as one device: set nprocPerNode where one holds more"
        )
        return (Notice("DevicesAssumed", message),)
    if podtemplate.count_devices(spec.template):
        return ()
    unknown = podtemplate.find_unknown_devices(spec.template)
    if unknown:
        message = (
            f"spec.nprocPerNode is {spec.nproc_per_node}, and {', '.join(unknown[:MOST_NAMED])} is no accelerator that "
            "this version knows: each pod runs one process; set nprocPerNode to the number of its devices"
        )
        return (Notice("UnknownDevice", message),)
    if spec.nproc_per_node == "auto":
        return ()
    trainer = podtemplate.trainer_container(spec.template)
    message = (
        f"spec.nprocPerNode is gpu, and the container {trainer!r} has no GPU in resources.limits: each pod runs one "
        "process; ask for GPUs there, or set nprocPerNode to a number"
    )
    return (Notice("NoDevices", message),)


def _find_foreign_launcher(spec: api.Spec) -> tuple[Notice, ...]:
    if spec.rendezvous.backend is not api.RendezvousBackend.OPERATOR:
        return ()
    name = podtemplate.trainer_container(spec.template)
    containers = spec.template["spec"]["containers"]
    trainer = next((one for one in containers if isinstance(one, dict) and one.get("name") == name), {})
    parts = [trainer.get("command") or [], trainer.get("args") or []]
    words = [word for part in parts if isinstance(part, list) for word in part if isinstance(word, str)]
    problem = launchers.find_foreign(words)
    return () if problem is None else (Notice("ForeignLauncher", f"container {name!r}: {problem}"),)


def find_pruned(annotations: Mapping[str, Any], spec: object) -> tuple[Notice, ...]:
    """Fields that `kubectl apply` sent and the API server dropped because they are not in the schema."""
    applied = own_size.read_applied(annotations)
    if applied is None or not isinstance(spec, dict):
        return ()
    stored = set(api.find_unknown(spec))
    gone = [path for path in api.find_unknown(applied) if path not in stored]
    if not gone:
        return ()

    def tell(path: api.Path) -> str:
        return f"{api.spell('spec', path)[:200]}: {api.advise(path)}"

    return (Notice("FieldDropped", f"the API server dropped unknown fields: {_name_some(gone, tell)}"),)


# --- status ----------------------------------------------------------------------------------------------


def read_status(raw: object) -> StatusRead:
    """Parse the status field by field, so that an invalid field does not affect the others."""
    if raw is None:
        return StatusRead(api.Status(), {})
    if not isinstance(raw, dict):
        return StatusRead(api.Status(), {}, tuple(sorted(DECIDING)), _warn_of_unread({"": "is not an object"}))
    wrong = {name: "is nested too deep" for name, value in raw.items() if bounds.is_too_deep(value)}
    status, more = _validate({name: value for name, value in raw.items() if name not in wrong})
    wrong |= more
    return StatusRead(status, raw, tuple(sorted(DECIDING & wrong.keys())), _warn_of_unread(wrong))


def _validate(raw: Mapping[str, Any]) -> tuple[api.Status, dict[str, str]]:
    try:
        return api.Status.model_validate(raw), {}
    except ValidationError as error:
        wrong = {str(item["loc"][0]): item["msg"] for item in error.errors(include_url=False, include_input=False)}
    rest = {name: value for name, value in raw.items() if name not in wrong}
    return api.Status.model_validate(rest), wrong


def find_missing_store(status: api.Status, spec: api.Spec | None) -> StatusRead | None:
    """The problem with a world of the operator's rendezvous that has members but no store; None if there is none."""
    world = status.rendezvous
    native = spec is not None and spec.rendezvous.backend is not api.RendezvousBackend.OPERATOR
    if native or not world.members or world.store is not None:
        return None
    wrong = {"rendezvous": "has members, but no store for them to connect to"}
    return StatusRead(status, {}, ("rendezvous",), _warn_of_unread(wrong))


def _warn_of_unread(wrong: Mapping[str, str]) -> tuple[Notice, ...]:
    if not wrong:
        return ()
    named = "; ".join(
        f"status{'.' if n else ''}{n[:64]}: {message[:200]}" for n, message in sorted(wrong.items())[:MOST_NAMED]
    )
    return (Notice("StatusNotUnderstood", f"{named}; it may have been written by another version"),)


# --- what cannot change while the job runs ----------------------------------------------------------------


def keep_in_force(spec: api.Spec, status: api.Status) -> tuple[api.Spec, tuple[Notice, ...]]:
    """The spec in force for the running world: changes of some fields wait until the job is suspended and resumed."""
    held = status.in_force
    if held is None or status.is_fresh:
        return spec, ()
    was, changed, nproc, number = held.rendezvous, [], spec.nproc_per_node, held.nproc_per_node
    if nproc == "cpu" and number == 1 and not podtemplate.leaves_nproc_to_pods(nproc, spec.template):
        number = status.nproc_per_node or 1  # that of the pods, if the template named no CPU when the job started
    if podtemplate.resolve_nproc(nproc, spec.template) != number:
        nproc = number
        changed.append(f"nprocPerNode (now {number})")
    for name in ("backend", "endpoint", "conf"):
        now = getattr(was, name)
        if (getattr(spec.rendezvous, name) or None) != (now or None):
            changed.append(f"rendezvous.{name}" + (f" (now {now})" if name == "backend" else ""))
    rendezvous = api.Rendezvous.model_construct(backend=was.backend, endpoint=was.endpoint, conf=was.conf)
    kept = spec.model_copy(update={"nproc_per_node": nproc, "rendezvous": rendezvous})
    if not changed:
        return kept, ()
    message = f"spec: the change of {', '.join(changed)} waits: suspend the job (runPolicy.suspend) and resume it"
    return kept, (Notice("ChangeWaits", message),)


def in_force(spec: api.Spec) -> api.InForceStatus:
    """The part of a spec that the status keeps while it is in force."""
    return api.InForceStatus(
        nproc_per_node=podtemplate.resolve_nproc(spec.nproc_per_node, spec.template),
        rendezvous=api.RendezvousInForce.model_validate(spec.rendezvous.model_dump()),
    )
