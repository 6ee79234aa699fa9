"""What admission has changed in a new pod of what its job needs: a pure comparison of what was sent and what came.

What others add is theirs: containers, volumes, variables, tolerations, defaults. So is an image of another registry.
Without what is *vital*, a pod is no worker, or cannot train: it is not kept. All else may be meant, as the program
before a command that fetches secrets: it is told when the job fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from elasticjob_operator import quantity, text
from elasticjob_operator.api import names
from elasticjob_operator.api.podfields import POD_FIELDS
from elasticjob_operator.api.podtemplate import trainer_container
from elasticjob_operator.model import launchers, ownership
from elasticjob_operator.untyped import as_object

Raw = Mapping[str, Any]

MOST: Final = 16  # that are told of one pod
_LONGEST: Final = 160  # characters of a value
_LONGEST_NAME: Final = 64
_RUNTIME: Final = f"{names.RUNTIME_PATH}/"  # copied or mounted
# Variables without which a pod is not one of its job's world. What others say about the rest is obeyed.
_NEEDED: Final = frozenset(
    {
        *(names.ENV_NAME, names.ENV_NAMESPACE, names.ENV_UID, names.ENV_INDEX),
        *(names.ENV_POD_NAME, names.ENV_POD_UID, names.ENV_POD_IP),
        *(names.ENV_HUB_URL, names.ENV_TOKEN_FILE, names.ENV_CA_FILE),
        *(names.ENV_CHECKPOINTS, names.ENV_CHECKPOINT_COPIES, names.ENV_ARCHIVE, names.ENV_ARCHIVE_FROM),
        *("PET_RDZV_BACKEND", "PET_RDZV_ENDPOINT", "PET_RDZV_ID", "PET_RDZV_CONF", "PET_NNODES", "PET_NPROC_PER_NODE"),
        *("PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_LOCAL_ADDR"),
    }
)
_GONE: Final = "nothing"
_EMPTY: Final = "emptyDir"
_SOURCES: Final = POD_FIELDS["volume"]
# Fields of volumes that others may set as they like ...
_FREE: Final = frozenset({"divisor", "pullPolicy"})
# ... those in the operator's own without which its agent does as well ...
_HARMLESS: Final = ("expirationSeconds", "defaultMode", "mode")
# ... and those whose values name an object or a place, and are no secrets.
_NAMES: Final = frozenset({"claimName", "secretName", "name", "path", "server", "reference", "audience"})
_AMOUNTS: Final = frozenset({"limits", "requests"})


@dataclass(frozen=True, slots=True)
class Alteration:
    """A field of the pod, what was sent and what it became."""

    field: str
    before: str
    after: str
    is_vital: bool = False

    def __str__(self) -> str:
        return f"{self.field}: {self.before} became {self.after}"


def find_alterations(sent: Raw, made: Raw) -> tuple[Alteration, ...]:
    """What has changed of what the job needs of this pod; what is vital comes first.

    `made`: without its spec, which was too large to be read, only its metadata is compared.
    """
    found = [*_compare_metadata(sent["metadata"], made["metadata"]), *(_compare(sent, made) if "spec" in made else ())]
    found.sort(key=lambda one: not one.is_vital)
    return tuple(found[:MOST])


def count_items(pod: Raw) -> int:
    """How many variables, mounts and volumes there are to compare."""
    spec = as_object(pod.get("spec"))
    containers = (one for kind in ("initContainers", "containers") for one in spec.get(kind) or ())
    inner = sum(len(one.get("env") or ()) + len(one.get("volumeMounts") or ()) for one in containers)
    return inner + len(spec.get("volumes") or ())


def describe(found: Sequence[Alteration]) -> str:
    return "; ".join(map(str, found))


def tell(found: Sequence[Alteration]) -> str:
    """What a job is told that has failed, if its pods were changed; "" if they were not."""
    if not found:
        return ""
    return f"an admission webhook or a policy has changed its pods, which may be why: {describe(found)}"


def _compare_metadata(before: Raw, after: Raw) -> Iterator[Alteration]:
    """Marks by which the operator finds its pods, and the owner by which they are a job's."""
    labels = as_object(after.get("labels"))
    for key, value in before["labels"].items():
        if names.is_mark(key) and labels.get(key) != value:
            yield _changed(f"metadata.labels[{_cut(key)}]", value, labels.get(key), is_vital=True)
    if ownership.owner_of(after) != ownership.owner_of(before):
        yield _changed("metadata.ownerReferences", "its job", ownership.owner_of(after)[0], is_vital=True)


@dataclass(frozen=True, slots=True)
class _Volumes:
    """By name, as they were sent and as they came."""

    sent: Mapping[str, Raw]
    made: Mapping[str, Raw]
    fed: frozenset[str]  # by containers that others have added: some bring what is in a claim that way


def _compare(sent: Raw, made: Raw) -> Iterator[Alteration]:
    before, after = sent["spec"], as_object(made.get("spec"))
    trainer = trainer_container({"metadata": sent["metadata"], "spec": before})
    others = _by_name(after, "containers") | _by_name(after, "initContainers")
    needed = {trainer, _find_installer(before), names.VOLUME_PACKAGES}  # containers without which it does not train
    volumes = _Volumes(_by_name(before, "volumes"), _by_name(after, "volumes"), _find_fed(before, after))
    lasting = set[str]()  # volumes of theirs
    for kind in ("initContainers", "containers"):
        for container in before.get(kind) or ():
            name = container["name"]
            found = _by_name(after, kind).get(name) if name == trainer else others.get(name)
            where = f"spec.{kind}[{_cut(name)}]"
            if found is None:
                yield Alteration(where, "the container", _GONE, is_vital=name in needed)
                continue
            yield from _compare_start(where, container, found, is_trainer=name == trainer)
            if name == trainer:
                yield from _compare_variables(where, container, found)
                yield from _compare_devices(where, container, found)
            yield from _compare_mounts(where, container, found, volumes, is_needed=name in needed)
            if name in needed:
                lasting.update(str(mount.get("name")) for mount in _mounts(container).values())
    for name, volume in volumes.sent.items():
        if (other := volumes.made.get(name)) is not None:  # else its mounts have gone with it, and are told
            field, is_fed = f"spec.volumes[{_cut(name)}]", name in volumes.fed
            yield from _compare_volume(field, volume, other, is_needed=name in lasting, is_fed=is_fed)
    if after.get("restartPolicy") != before.get("restartPolicy"):
        yield _changed("spec.restartPolicy", before.get("restartPolicy"), after.get("restartPolicy"), is_vital=True)
    for field in ("hostname", "subdomain"):
        if before.get(field) and after.get(field) != before[field]:
            yield _changed(f"spec.{field}", before[field], after.get(field))
    grace, left = (_number(one.get("terminationGracePeriodSeconds")) for one in (before, after))
    if grace is not None and left is not None and left < grace:
        yield _changed("spec.terminationGracePeriodSeconds", grace, left)


def _find_installer(spec: Raw) -> str:
    """The init container that copies the runtime: its name gives way to those of the template, so it is the longest."""
    found = (str(one["name"]) for one in spec.get("initContainers") or ())
    ours = (one for one in found if one.startswith(names.VOLUME_RUNTIME))
    return max((one for one in ours if not one.removeprefix(names.VOLUME_RUNTIME).strip("-0")), key=len, default="")


def _find_fed(before: Raw, after: Raw) -> frozenset[str]:
    known = {one["name"] for kind in ("containers", "initContainers") for one in before.get(kind) or ()}
    return frozenset(
        str(mount.get("name"))
        for kind in ("containers", "initContainers")
        for container in _by_name(after, kind).values()
        if container.get("name") not in known
        for mount in container.get("volumeMounts") or ()
    )


def _compare_start(where: str, before: Raw, after: Raw, *, is_trainer: bool) -> Iterator[Alteration]:
    """What the container runs: its image, and the words of its command."""
    if not _is_same_image(str(before.get("image") or ""), str(after.get("image") or "")):
        yield _changed(f"{where}.image", before.get("image"), after.get("image"))
    wanted, words = _words(before), _words(after)
    if wanted == words:
        return
    field = "command" if before.get("command") != after.get("command") else "args"
    # A program that starts the command has its first word among its arguments, or in a line for a shell.
    is_kept = not wanted or wanted[0] in "\n".join(words) or launchers.starts_agent(words)
    now = " ".join((*words[:1], "…")) if len(words) > 1 else _line(words)  # what others have put there may be a secret
    yield _changed(f"{where}.{field}", _line(wanted), now, is_vital=is_trainer and not is_kept)


def _compare_variables(where: str, before: Raw, after: Raw) -> Iterator[Alteration]:
    wanted, found = _variables(before), _variables(after)
    for name, one in wanted.items():
        other = found.get(name)
        if other == one or (other is not None and _holds(other, one)):
            continue
        if name == "PYTHONPATH" and _RUNTIME in str(one.get("value")):
            value = str((other or {}).get("value") or "")
            if _RUNTIME in value or "$(PYTHONPATH)" in value:
                continue  # others have put theirs beside it
            is_vital = True
        else:
            is_vital = name in _NEEDED
        yield _changed(f"{where}.env[{_cut(name)}]", _tell_value(one), _tell_value(other), is_vital=is_vital)


def _compare_devices(where: str, before: Raw, after: Raw) -> Iterator[Alteration]:
    """Devices that the trainer has lost: the number of its processes was made for them."""
    limits, left = (as_object(as_object(one.get("resources")).get("limits")) for one in (before, after))
    for name, amount in limits.items():
        if "/" in name and not _is_same_amount(amount, left.get(name)):
            yield _changed(f"{where}.resources.limits[{_cut(name)}]", amount, left.get(name))


def _compare_mounts(where: str, before: Raw, after: Raw, volumes: _Volumes, *, is_needed: bool) -> Iterator[Alteration]:
    found = _mounts(after)
    for path, mount in _mounts(before).items():
        other = found.get(path)
        if other == mount:
            continue
        field = f"{where}.volumeMounts[{_cut(path)}]"
        if other is None:
            is_vital = is_needed and path != "/dev/shm"  # noqa: S108
            yield Alteration(field, f"volume {_cut(mount.get('name'))}", _GONE, is_vital)
            continue
        if other.get("readOnly") and not mount.get("readOnly"):
            yield Alteration(field, "writable", "readOnly")
        if mount.get("name") != other.get("name"):
            yield from _compare_mounted(field, mount, other, volumes, is_needed=is_needed)
            continue
        for name in ("subPath", "subPathExpr"):
            if (mount.get(name) or "") != (other.get(name) or ""):
                yield _changed(f"{field}.{name}", mount.get(name), other.get(name))


def _compare_mounted(field: str, mount: Raw, other: Raw, volumes: _Volumes, *, is_needed: bool) -> Iterator[Alteration]:
    """Another volume is mounted there: it may have the same content, unless that comes from other containers."""
    name, instead = str(mount.get("name")), str(other.get("name"))
    volume, mounted = volumes.sent.get(name, {}), volumes.made.get(instead, {})
    is_empty = _kind(volume) == _EMPTY
    is_fed = instead in volumes.fed
    found = list(_compare_volume(field, volume, mounted, is_needed=is_needed, is_fed=is_fed))
    if found or is_empty:
        is_lost = is_needed and mount.get("mountPath") == names.RUNTIME_PATH
        is_vital = is_lost or any(one.is_vital for one in found)
        yield Alteration(field, f"volume {_cut(name)}", f"volume {_cut(instead)}", is_vital)


def _compare_volume(field: str, volume: Raw, other: Raw, *, is_needed: bool, is_fed: bool) -> Iterator[Alteration]:
    if volume == other:
        return
    kind, instead = _kind(volume), _kind(other)
    token, tokens = next(_find_tokens(volume), ""), tuple(_find_tokens(other))
    is_ours = token.startswith(names.TOKEN_AUDIENCE)
    if kind == instead == _EMPTY:
        yield from _compare_empty(field, as_object(volume.get(kind)), as_object(other.get(kind)))
    elif kind not in _SOURCES and instead == _EMPTY:
        return  # the API server drops what it does not know, which the job is warned of
    elif kind != instead:
        yield Alteration(field, kind, instead, is_vital=is_ours or (instead == _EMPTY and is_needed and not is_fed))
    elif token and token not in tokens:
        yield _changed(f"{field}.{kind}", token, next(iter(tokens), ""), is_vital=is_ours)
    elif (found := _find_difference(volume[kind], other[kind], f"{field}.{kind}", is_ours=is_ours)) is not None:
        yield found


def _find_difference(wanted: Any, found: Any, path: str, *, is_ours: bool) -> Alteration | None:
    """The first place in a volume's source that has become another one.

    What is there no more is told of the operator's own volumes only: of others, the API server drops unknown fields.
    """
    if found == wanted:
        return None
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        for key, value in wanted.items():
            other = found.get(key)
            if key not in _FREE and value not in ("", None, {}, []) and (is_ours or other is not None):
                inner = _find_difference(value, other, f"{path}.{_cut(key)}", is_ours=is_ours)
                if inner is not None:
                    return inner
        return None
    if isinstance(wanted, list) and isinstance(found, list):
        return _find_difference_of_lists(wanted, found, path, is_ours=is_ours)
    above, _, key = path.rpartition(".")
    if str(found) == str(wanted) or (above.rpartition(".")[2] in _AMOUNTS and _is_same_amount(wanted, found)):
        return None
    if key == "reference" and _is_same_image(str(wanted), str(found)):
        return None
    is_told = key in _NAMES and not isinstance(wanted, Mapping | list)
    before, after = (wanted, found) if is_told else ("its value", None if found is None else "its value")
    return _changed(path, before, after, is_vital=is_ours and key not in _HARMLESS)


def _find_difference_of_lists(
    wanted: Sequence[Any], found: Sequence[Any], path: str, *, is_ours: bool
) -> Alteration | None:
    """Others may have put theirs between those that were sent."""
    if len(wanted) == len(found):
        pairs = enumerate(zip(wanted, found, strict=True))
        looked = (_find_difference(one, other, f"{path}[{at}]", is_ours=is_ours) for at, (one, other) in pairs)
        return next((one for one in looked if one is not None), None)
    rest = iter(found)
    if all(any(_find_difference(one, other, path, is_ours=is_ours) is None for other in rest) for one in wanted):
        return None
    return _changed(path, "its value", "its value", is_vital=is_ours)


def _compare_empty(field: str, before: Raw, after: Raw) -> Iterator[Alteration]:
    for name in ("medium", "sizeLimit"):
        wanted, found = before.get(name) or "", after.get(name) or ""
        if not _is_same_amount(wanted, found):
            yield _changed(f"{field}.emptyDir.{name}", wanted, found)


def _is_same_image(before: str, after: str) -> bool:
    """Whether this is the same image, as far as its name tells: a mirror has a path of its own, and may pin it."""
    if before == after:
        return True
    (name, tag, digest), (other, other_tag, other_digest) = _split_image(before), _split_image(after)
    if other != name and not other.endswith(f"-{name}") and not other.endswith(f"_{name}"):
        return False
    if digest and other_digest:
        return digest == other_digest
    return bool(other_digest) or tag == other_tag


def _split_image(image: str) -> tuple[str, str, str]:
    rest, _, digest = image.partition("@")
    name, _, tag = rest.rpartition("/")[2].partition(":")
    return name, tag or "latest", digest


def _is_same_amount(wanted: object, found: object) -> bool:
    """The API server writes quantities in a form of its own."""
    if wanted == found:
        return True
    try:
        return quantity.parse(wanted) == quantity.parse(found)
    except ValueError:
        return str(wanted) == str(found)


def _words(container: Raw) -> list[str]:
    return [str(word) for field in ("command", "args") for word in container.get(field) or ()]


def _variables(container: Raw) -> dict[str, Raw]:
    """By name; of two with one name the last one counts, as for the kubelet."""
    return {str(one.get("name")): one for one in container.get("env") or () if isinstance(one, Mapping)}


def _mounts(container: Raw) -> dict[str, Raw]:
    return {
        str(one.get("mountPath") or "").rstrip("/") or "/": one
        for one in container.get("volumeMounts") or ()
        if isinstance(one, Mapping)
    }


def _by_name(spec: Raw, kind: str) -> dict[str, Raw]:
    return {str(one.get("name")): one for one in spec.get(kind) or () if isinstance(one, Mapping)}


def _kind(volume: Raw) -> str:
    return next((key for key, value in volume.items() if key != "name" and value is not None), _EMPTY)


def _find_tokens(volume: Raw) -> Iterator[str]:
    """Audience and path of each token in a projected volume."""
    for source in as_object(volume.get("projected")).get("sources") or ():
        token = as_object(as_object(source).get("serviceAccountToken"))
        if token.get("path"):
            yield f"{token.get('audience') or ''} {token['path']}"


def _holds(found: Any, wanted: Any) -> bool:
    """Whether all that was wanted is there: the API server adds what goes without saying."""
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(
            _holds(found.get(key), value)
            for key, value in wanted.items()
            if value not in ("", None) and key != "divisor"
        )
    return bool(found == wanted) or str(found) == str(wanted)


def _tell_value(variable: Raw | None) -> object:
    """A value of the operator's or of a source; what users write into a variable may be a secret."""
    if variable is None:
        return None
    name = str(variable.get("name"))
    if name in _NEEDED or name == "PYTHONPATH":
        return variable.get("value") if variable.get("value") is not None else "its source"
    return "its value" if variable.get("value") is not None else "its source"


def _changed(field: str, before: object, after: object, *, is_vital: bool = False) -> Alteration:
    said, now = _say(before), _say(after)
    return Alteration(field, said, "another one" if said == now else now, is_vital)


def _say(value: object) -> str:
    return _GONE if value is None or value == "" else text.clean(str(value), _LONGEST)


def _line(words: Sequence[str]) -> str:
    return " ".join(words)


def _cut(name: object) -> str:
    return text.clean(str(name), _LONGEST_NAME)


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None
