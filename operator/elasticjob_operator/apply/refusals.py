"""Interprets writes that the API server rejects. Pure."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from elasticjob_operator import numerals, quantity
from elasticjob_operator.api import names
from elasticjob_operator.model import reading
from elasticjob_operator.plan.values import EXTRAS, Kind
from elasticjob_operator.rest.errors import BUSY, ApiError

# The field that the API server refuses, in an item of its list, or at the beginning of its message; "<nil>" is all.
_REFUSED_FIELD: Final = re.compile(
    r'(?:\S{1,253} "[^"]{0,253}" is invalid: \[?)?'
    r"(?:<nil>|\.?(?P<part>spec|status|metadata)\b(?:\.(?P<field>\w{1,64}))?)"
)
_UNCHECKED: Final = "some validation rules were not checked"  # beside what is invalid: no fault of its own
_DEEPEST: Final = 12  # levels of a pod in which quantities are looked for
_LONGEST_KEY: Final = 64  # characters of a key of the pod
_MOST_TOLD: Final = 16
_MOST_SHOWN: Final = 3  # fields of an item that has no name
_LARGEST_SHOWN: Final = 2**63  # no field is larger
_MOST_LOOKED: Final = 3_000  # lists, objects and quantities of a pod that are looked at: no sensible one has more
_NO_AUTOSCALER: Final = "AutoscalerRefused"
_NO_GROUP: Final = (
    "the cluster does not serve {}, so no PodGroup was created: install the scheduler named in "
    "spec.template.spec.schedulerName, or remove that field"
)
_NO_POLICY: Final = (
    "no pod starts without the job's NetworkPolicy: allow it, or set spec.network.policy: false, with which other pods "
    "of the cluster can reach the workers' ports"
)
_EXTRAS: Final = {  # what a job can do without: the reason, and what it then lacks
    Kind.DISRUPTION_BUDGET: (
        "BudgetRefused",
        "the job trains without its PodDisruptionBudget: a drain may evict more of its pods at once than "
        "elasticPolicy.minReplicas allows",
    ),
    Kind.SERVICE: (
        "ServiceRefused",
        "pods start without the job's Service: their names lead nowhere until it is there",
    ),
}
_ALTERED: Final = "PodAltered"
_TOLD_BY_REASON = (
    *("NameTaken", "NotServed", "ObjectRejected", "PolicyRefused", _ALTERED, _NO_AUTOSCALER),
    *(reason for reason, _ in _EXTRAS.values()),
)
# A field with what is wrong about it, and its value where that is a short text, as the API server read it.
_WRONG_FIELD: Final = re.compile(
    r"\bspec\.(?P<path>(?P<field>\w{1,64}+)[^\s:]{0,256}+): (?:(?P<absent>Not found|Required value|"
    r'Invalid value: false\b)|(?:Invalid|Unsupported|(?P<twice>Duplicate)) value)(?:: "(?P<value>[^"\\…]{1,100})")?'
)
# Fields of a pod that the API server keeps, and tells, in its securityContext.
_KEPT_ELSEWHERE: Final = frozenset({"hostNetwork", "hostPID", "hostIPC", "hostUsers", "shareProcessNamespace"})
_ELSEWHERE: Final = re.compile(r"securityContext\.(\w{1,64})")
_PROTOCOLS: Final = frozenset({"TCP", "UDP", "SCTP"})
_ITEM: Final = re.compile(r"\bspec((?:\.\w{1,64}\[\d{1,4}\]){1,2})")
_INDEXED: Final = re.compile(r"(\w{1,64})\[(\d{1,4})\]")
_STEP: Final = re.compile(r"(\w{1,64})|\[(\d{1,4})\]")
_OF_CONTAINER: Final = re.compile(
    r"(?P<kind>containers|initContainers)\[\d{1,4}\]\.(?P<items>\w{1,64})\[(?P<item>\d{1,4})\]"
)
_SHM_TAKEN: Final = re.compile(r'\bspec\.\S{1,256}\.mountPath: Invalid value: "/dev/shm": must be unique')
_NO_LIMIT: Final = "Limit must be set for non overcommitable resources"
# A request above a limit; the limit is of the same container.
_ABOVE_LIMIT: Final = re.compile(
    r"\bspec\.(containers|initContainers)\[(\d{1,4})\]\.resources\.requests: Invalid value: [^:]{1,64}: "
    r"must be less than or equal to (\S{1,256}) limit"
)
# A rule of the cluster, whatever code it answers: it may be mended, and the template may be right.
_DENIED: Final = re.compile(
    r"""(?:admission webhook "[^"]{1,256}"|AdmissionPolicy '[^']{1,256}'(?: with binding '[^']{1,256}')?)"""
    r" denied (?:the )?request"
)
_QUANTITIES: Final = ("limits", "requests", "overhead", "sizeLimit", "divisor")  # fields with one, or many by name


def is_refusal(error: ApiError) -> bool:
    """Whether an immediate retry is pointless."""
    return error.status in (400, 403, 413, 422) or error.reason in _TOLD_BY_REASON


def explain_trouble(error: ApiError, *, answers_others: bool = False) -> tuple[str, str] | None:
    """(reason, message) of a condition for an error that lasts; None if the API server was only away or busy.

    `answers_others`: it has answered other requests since one of this job had no answer, or found it too busy, so it is
    not away.
    """
    if error.status in (0, *BUSY) and not answers_others:
        return None
    return "WriteFailed", f"the API server does not take what the operator writes, which is tried again: {error}"


def is_shm_taken(error: ApiError) -> bool:
    """Whether a pod was rejected because something else mounts /dev/shm too: a webhook, after the operator."""
    return error.status == 422 and any(map(_SHM_TAKEN.search, error.causes))


def name_pod(error: ApiError, pod: Mapping[str, Any]) -> ApiError:
    """The rejection of a pod, with what the API server does not say: which quantity it is, what the items of lists are
    called, or that others wrote them.
    """
    if error.status not in (400, 422) or _DENIED.search(error.message):
        return error
    if "quantities must match" in error.message:
        looked = itertools.islice(_look_at_quantities(pod["spec"], "spec"), _MOST_LOOKED)
        wrong = ", ".join(itertools.islice(filter(None, looked), _MOST_TOLD))
        return ApiError(error.status, error.reason, f"{error.message}; no quantities: {wrong}") if wrong else error
    if any(_NO_LIMIT in cause for cause in error.causes):
        wrong = ", ".join(itertools.islice(_find_unlimited(pod["spec"]), _MOST_TOLD))
        return ApiError(error.status, error.reason, f"{error.message}; no limit: {wrong}") if wrong else error
    if limited := _find_added_limit(error, pod["spec"]):
        return ApiError(error.status, _ALTERED, f"{limited}: {error.message}")
    found = next(filter(None, map(_WRONG_FIELD.search, error.causes)), None)
    added = _find_added(found, pod["spec"]) if found is not None else ""
    if not added:
        items = ", ".join(_name_items(error, pod["spec"]))
        return ApiError(error.status, error.reason, f"{error.message}; {items}") if items else error
    moved = _find_moved(found, pod["spec"]) if found is not None else ""
    before = f", or has put a container before those of the template: {moved}" if moved else ""
    return ApiError(
        error.status,
        _ALTERED,
        f"the API server rejects the pod for {added}, which is not in spec.template: an admission webhook or a policy "
        f"has added it{before}: {error.message}",
    )


def _name_items(error: ApiError, spec: Mapping[str, Any]) -> list[str]:
    """`item is name` for those that it is about: the pod has others than the template, and so other numbers."""
    found: dict[str, str] = {}
    for path in itertools.chain.from_iterable(map(_ITEM.findall, error.causes)):
        one: object = spec
        item = ""
        for kind, index in _INDEXED.findall(path):
            known = one.get(kind) if isinstance(one, Mapping) else None
            position = numerals.read_count(index, len(known) - 1) if isinstance(known, list) and known else None
            one = known[position] if known and position is not None else None
            item = f"{item}.{kind}[{index}]".lstrip(".")
            if isinstance(one, Mapping) and len(found) < _MOST_TOLD:
                found[item] = f"{item} is {_show_item(one)}"
    return list(found.values())


def _show_item(one: Mapping[str, Any]) -> str:
    """The name of an item; where it has none, the first of what it has."""
    name = one.get("name")
    if isinstance(name, str) and name:
        return _cut(name) if name.isprintable() else repr(_cut(name))
    has = itertools.islice(one.items(), _MOST_SHOWN)
    return json.dumps({_cut(key): _show_value(value) for key, value in has}, ensure_ascii=False)


def _show_value(value: object) -> str | int:
    if isinstance(value, str):
        return _cut(value)
    return value if isinstance(value, int) and abs(value) <= _LARGEST_SHOWN else "…"


def _find_added(found: re.Match[str], spec: Mapping[str, Any]) -> str:
    """What is wrong and was not in the pod that was sent: a field, the item of a list, or a text; "" for nothing."""
    where, value, field = f"spec.{found['path']}", found["value"], found["field"]
    kept = _ELSEWHERE.fullmatch(found["path"])
    if kept is not None and kept[1] in _KEPT_ELSEWHERE:
        field = kept[1]
    if _is_beyond(found["path"], spec) or (field not in spec and not found["absent"]):
        return where
    if found["absent"] or value is None or _is_quantity(value) or _holds(spec, value):
        return ""
    if found["twice"] and all(map(partial(_is_part_of, spec), value.split("/"))):
        return ""
    return f"{value!r} in {where}"


def _find_moved(found: re.Match[str], spec: Mapping[str, Any]) -> str:
    """The item of a container of the template that this may be, if others have put containers before it: `item of
    container is name`; "" if there is none.
    """
    at = _OF_CONTAINER.match(found["path"])
    if at is None or (found["value"] and not _holds(spec, found["value"])):
        return ""
    for container in spec.get(at["kind"]) or ():
        known = container.get(at["items"])
        position = numerals.read_count(at["item"], len(known) - 1) if isinstance(known, list) and known else None
        if position is not None and isinstance(known[position], Mapping):
            where = f"{at['items']}[{position}] of {_show_item(container)}"
            return f"{where} is {_show_item(known[position])}"
    return ""


def _is_part_of(spec: Mapping[str, Any], part: str) -> bool:
    """Whether a part of what is there twice may be of this pod: a port of a node has its protocol, address and number,
    of which the first two may be left out.
    """
    return part in _PROTOCOLS or (part.isascii() and part.isdigit()) or _holds(spec, part)


def _is_beyond(path: str, raw: Any) -> bool:
    """Whether this path leads to an item of a list that has fewer of them."""
    for name, index in _STEP.findall(path):
        if name:
            raw = raw.get(name) if isinstance(raw, Mapping) else None
        elif not isinstance(raw, list):
            return False
        elif (position := numerals.read_count(index, len(raw) - 1)) is None:
            return True
        else:
            raw = raw[position]
    return False


def _holds(raw: object, text: str) -> bool:
    """Whether any key or value contains this text."""
    left = [raw]
    while left:
        one = left.pop()
        if isinstance(one, str) and text in one:
            return True
        if isinstance(one, Mapping):
            left += (*one.keys(), *one.values())
        elif isinstance(one, list):
            left += one
    return False


def _find_unlimited(spec: Mapping[str, Any]) -> Iterator[str]:
    """The devices that containers request without a limit: `field: container`."""
    for kind in ("initContainers", "containers"):
        for container in spec.get(kind) or ():
            resources = container.get("resources") or {}
            limits = resources.get("limits") or {}
            lacking = [name for name in resources.get("requests") or () if "/" in name and name not in limits]
            where = _quote(container.get("name"))
            yield from (f"resources.limits[{_cut(name)}] of container {where}" for name in lacking)


def _find_added_limit(error: ApiError, spec: Mapping[str, Any]) -> str:
    """Whose limit is below its request although the pod was sent without it; "" if nobody's is."""
    for kind, at, resource in itertools.chain.from_iterable(map(_ABOVE_LIMIT.findall, error.causes)):
        container: Mapping[str, Any] = next(
            (one for index, one in enumerate(spec.get(kind) or ()) if str(index) == at), {}
        )
        if resource not in ((container.get("resources") or {}).get("limits") or {}):
            return (
                f"container {_quote(container.get('name'))} has no resources.limits[{resource}] in spec.template: a "
                "LimitRange of the namespace or a webhook has set one below what it requests; set it yourself"
            )
    return ""


def _look_at_quantities(raw: object, path: str, depth: int = 0) -> Iterator[str]:
    """`field: value` for each quantity that cannot be read, and "" for each other one, and each list and object.

    In a bounded depth, and with keys that are cut.
    """
    if depth > _DEEPEST:
        return
    if isinstance(raw, list):
        for at, one in enumerate(raw):
            if isinstance(one, dict | list):  # there may be thousands of others
                yield ""
                yield from _look_at_quantities(one, f"{path}[{at}]", depth + 1)
    if not isinstance(raw, dict):
        return
    for key, value in raw.items():
        if key not in _QUANTITIES:
            if isinstance(value, dict | list):
                yield ""
                yield from _look_at_quantities(value, f"{path}.{_cut(key)}", depth + 1)
            continue
        field = f"{path}.{_cut(key)}"
        if isinstance(value, dict):
            for name, one in value.items():
                yield "" if _is_quantity(one) else f"{field}[{_cut(name)}]: {numerals.shorten(one)!r}"
        else:
            yield "" if _is_quantity(value) else f"{field}: {numerals.shorten(value)!r}"


def _cut(name: str) -> str:
    """A name as it is told: its author may have made it as long as the object."""
    return name[:_LONGEST_KEY]


def _quote(name: object) -> str:
    return repr(_cut(name) if isinstance(name, str) else None)


def _is_quantity(value: object) -> bool:
    try:
        quantity.parse(value)
    except ValueError:
        return False
    return True


def is_unserved(error: ApiError) -> bool:
    """Whether an object was not created because the cluster does not serve its kind: its namespace is there."""
    return error.status == 404 and not error.message.startswith("namespaces ")


def find_unwritable(error: ApiError, patch: Collection[str]) -> tuple[str, ...]:
    """The fields of a status to leave out, because the API server refuses them; none if that would not be enough.

    It checks the whole object: what is wrong elsewhere is not mended by a shorter status. Nor are fields left out on
    which decisions depend: without them the pass has to be repeated.
    """
    if error.status != 422:
        return ()
    named = {found["field"] if found and found["part"] == "status" else None for found in _find_fields(error)}
    return tuple(sorted(name for name in named if name)) if named <= set(patch) - reading.DECIDING else ()


def decides(patch: Collection[str]) -> bool:
    """Whether decisions depend on a field of this part of a status."""
    return not reading.DECIDING.isdisjoint(patch)


def explain_unwritten(error: ApiError) -> str:
    """What a job is told whose status is not written."""
    if any(found and found["part"] != "status" for found in _find_fields(error)):
        return (
            "the API server refuses the job as it is stored, and with it each status: its pods go on, but nothing "
            f"changes until its spec is mended: {error.message}"
        )
    why = f"{error}" if error.status in BUSY else error.message
    return f"the job waits: the API server refuses its status, which is tried again later: {why}"


def _find_fields(error: ApiError) -> list[re.Match[str] | None]:
    """The field of each cause of a refusal; None for one that names none."""
    return [_REFUSED_FIELD.match(cause) for cause in error.causes if _UNCHECKED not in cause]


def explain_resize(pod: str, error: ApiError) -> str | None:
    """Why a pod keeps its CPU and memory; "" where it is gone or has changed, None for an error to try again."""
    if error.status == 409 or (error.status == 404 and f'"{pod}"' in error.message):
        return ""
    if error.status in (404, 405):
        return "the API server cannot resize pods, which Kubernetes can from 1.33 on"
    if error.status == 403:
        return f"{error.message}: the operator's role needs patch pods/resize"
    return error.message if is_refusal(error) else None


def name_unserved(kind: Kind, version: str) -> ApiError | None:
    """What a job is told whose objects of this kind the cluster does not serve; None if it does without them."""
    if kind is Kind.POD_GROUP:
        return ApiError(404, "NotServed", _NO_GROUP.format(version))
    if kind in (Kind.NETWORK_POLICY, Kind.CONFIG_MAP):
        return ApiError(404, "NotServed", f"the API server does not serve {version}")
    if kind is Kind.AUTOSCALER:
        return _refuse_autoscaler(404, "the cluster serves neither autoscaling/v2 nor autoscaling/v2beta2")
    return None


def name_taken(kind: str, name: str) -> ApiError:
    """What a job is told one of whose objects cannot be made, because another has its name."""
    said = f"a {kind} named {name} exists, but does not belong to this job: delete it or rename the job"
    return ApiError(409, "NameTaken", said)


def name_alterations(pod: str, changes: str) -> ApiError:
    """What a job is told one of whose new pods came without what makes it a worker, or what its trainer needs."""
    said = (
        f"the pod {pod} is not as the operator has made it: {changes}; an admission webhook or a policy has changed "
        "that: let it leave the pods of ElasticJobs as they are; or this API server is too old to know the field"
    )
    return ApiError(422, _ALTERED, said)


def label_lost(name: str) -> ApiError:
    """What a job is told one of whose pods nobody watches any more."""
    label = f"{names.LABEL_APP}={names.LABEL_APP_VALUE}"
    return ApiError(409, "NameTaken", f"the pod {name} has lost the label {label}: give it back, or delete the pod")


def name_child(kind: Kind, error: ApiError) -> ApiError:
    """The rejection of an object that is no pod, told as such, and whether a job can do without it."""
    named = _name_child(kind, error)
    named.is_extra = kind in EXTRAS
    return named


def _name_child(kind: Kind, error: ApiError) -> ApiError:
    """Any other error is returned as it is."""
    if kind is Kind.AUTOSCALER and is_refusal(error) and error.reason != _NO_AUTOSCALER:
        remedy = ": install the operator's chart with rbac.autoscaling=true" if error.status == 403 else ""
        return _refuse_autoscaler(error.status, error.message + remedy)
    if kind in _EXTRAS and is_refusal(error):
        own, lack = _EXTRAS[kind]
        reason = error.reason if error.reason in _TOLD_BY_REASON else own
        return ApiError(error.status, reason, f"{error.message}; {lack}")
    if kind is Kind.NETWORK_POLICY and is_refusal(error):
        reason = error.reason if error.reason in _TOLD_BY_REASON else "PolicyRefused"
        return ApiError(error.status, reason, f"{error.message}; {_NO_POLICY}")
    if error.status in (400, 413, 422):
        return ApiError(error.status, "ObjectRejected", f"the API server rejects the job's {kind}: {error.message}")
    return error


def _refuse_autoscaler(status: int, why: str) -> ApiError:
    return ApiError(status, _NO_AUTOSCALER, f"elasticPolicy.metrics has no effect: {why}")


def is_blocking(refused: Sequence[ApiError]) -> bool:
    """Whether pods are rejected, or something that they need."""
    return not all(error.is_extra for error in refused)


def find_problem(refused: Sequence[ApiError]) -> tuple[str, str] | None:
    """(reason, message) of a condition: an invalid template, or a rejection that may be temporary."""
    for error in refused:
        is_denied = _DENIED.search(error.message) is not None
        if error.status in (400, 413, 422) and error.reason not in _TOLD_BY_REASON and not is_denied:
            return "InvalidTemplate", f"spec.template: the API server rejects the pod: {error.message}"
    if refused:
        first = min(refused, key=lambda error: error.is_extra)
        return first.reason if first.reason in _TOLD_BY_REASON else reading.FORBIDDEN, first.message
    return None


def find_undeleted(refused: Sequence[ApiError]) -> tuple[str, str] | None:
    """The same for what the API server does not delete."""
    if not refused:
        return None
    return "DeleteForbidden", f"the API server does not delete what the job no longer needs: {refused[0].message}"
