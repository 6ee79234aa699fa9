"""Sends new code to a job that runs: into the ConfigMap that no world needs, then its number and digest into the spec.

The pods of a job have two ConfigMaps mounted for that (`attach`). The revision in force is in one of them, so the next
one goes into the other, and the one before it can be taken again. What is sent is complete: files, arguments and
variables.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elasticjob_operator import api
from elasticjob_operator.api import names
from elasticjob_operator.client import Client, Job
from elasticjob_operator.client.errors import InvalidError, NotFoundError
from elasticjob_operator.launch.attach import build_config_map, find_items, owned_by
from elasticjob_operator.launch.bundle import Bundle, CodeError
from elasticjob_operator.rest.request import Request, path_of


@dataclass(frozen=True)
class Revision:
    """Code for a job that runs. `arguments`: in place of those in the manifest; None: these stay."""

    bundle: Bundle
    arguments: tuple[str, ...] | None = None
    variables: Mapping[str, str] | None = None

    @property
    def digest(self) -> str:
        """SHA-256 of what the agents need, as 64 hexadecimal digits; they compute the same."""
        rest = {"arguments": self.arguments, "code": self.bundle.digest, "variables": dict(self.variables or {})}
        return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def build_update(name: str, revision: Revision) -> dict[str, Any]:
    """The ConfigMap `name` with this revision, and with the index by which the agents find its files."""
    described = {names.ANNOTATION_CODE: f"sha256:{revision.digest}"}
    config_map = build_config_map(name, revision.bundle, described)
    del config_map["immutable"]  # the kubelets look for no change of such
    index = {
        "digest": revision.digest,
        "requirements": revision.bundle.requirements or "",
        "files": [{"executable": file.executable, **item} for item, file in find_items(revision.bundle)],
        "arguments": None if revision.arguments is None else list(revision.arguments),
        "variables": dict(revision.variables or {}),
    }
    config_map["data"][names.UPDATE_INDEX] = json.dumps(index)
    return config_map


def check(job: Job, bundle: Bundle | None) -> None:
    """Raises InvalidError or CodeError if the job cannot take the code; None: it is to take older code again."""
    if job.status.finished:
        raise InvalidError(f"{job.name}: has finished: submit a new job")
    if not _is_updatable(job):
        raise InvalidError(
            f"{job.name}: its pods have no place for an update: they do not run code that `submit` or `launch` of this "
            "version has sent. Submit it as a new job"
        )
    spec = job.spec
    if spec is not None and job.is_elsewhere:
        field = "spec.managedBy" if spec.managed_by else "spec.runPolicy.managedBy"
        raise InvalidError(
            f"{field}: {job.name} is run by {spec.manager}, and only this operator brings new code to pods that "
            "run. Submit it as a new job"
        )
    if spec is not None and spec.rendezvous.backend is not api.RendezvousBackend.OPERATOR:
        backend = spec.rendezvous.backend.value
        raise InvalidError(f"spec.rendezvous.backend: of {job.name} is {backend}, and updates need operator")
    for path in _find_scripts(job) if bundle is not None else ():
        if bundle is not None and not bundle.has(path):
            raise CodeError(f"{path}: is what {job.name} runs, and is not in the code that is sent")


def choose_slot(job: Job, found: Mapping[str, str | None], digest: str) -> str:
    """Where the revision goes. `found`: the digest of what is in each slot; None: nothing."""
    in_force = job.status.code.digest if job.status.code else None
    free = [slot for slot in names.UPDATE_SLOTS if found[slot] is None or found[slot] != in_force]
    return min(free, key=lambda slot: (found[slot] != digest, found[slot] is not None))


def next_number(job: Job) -> int:
    """The number of the next revision."""
    code, spec = job.status.code or api.CodeStatus(), job.spec
    asked = spec.code.revision if spec is not None and spec.code is not None else 0
    return max(code.newest, asked) + 1


def find_undone(job: Job) -> dict[str, Any] | None:
    """The value of spec.code that takes the last update back. Raises InvalidError if there is none."""
    code = job.status.code or api.CodeStatus()
    if _is_awaited(job):
        return {"revision": code.revision, "digest": code.digest} if code.revision else None
    if code.previous is None:
        why = f": revision {code.failed.revision} has been taken back already" if code.failed else ""
        raise InvalidError(f"{job.name}: has no revision to go back to{why}")
    return {"revision": next_number(job), "digest": code.previous.digest}


def _is_awaited(job: Job) -> bool:
    """Whether the revision that the job is asked to run is not in force yet."""
    code, spec = job.status.code or api.CodeStatus(), job.spec
    return spec is not None and spec.code is not None and spec.code.revision > code.newest


async def update(client: Client, name: str, revision: Revision) -> Job:
    """Send the revision, and let the job take it. Raises ClientError."""
    job = await client.get(name)
    check(job, revision.bundle)
    await _check_packages(client, job, revision.bundle)
    code = job.status.code
    if code is not None and not code.proven:
        raise InvalidError(
            f"{name}: revision {code.revision} has made no step yet: wait until it has, or take it back (--undo)"
        )
    if _is_in_force(job, revision):
        as_what = f"as revision {code.revision}" if code is not None and code.revision else "as it was submitted"
        raise InvalidError(f"{name}: runs this code already, {as_what}")
    found = {slot: await _read(client, job, slot) for slot in names.UPDATE_SLOTS}
    slot = choose_slot(job, {slot: _digest_of(one) for slot, one in found.items()}, revision.digest)
    body = owned_by(build_update(names.update_config_map_name(name, slot), revision), job.name, job.uid)
    await _write(client, job, body, found[slot])
    return await client.patch(name, {"spec": {"code": {"revision": next_number(job), "digest": revision.digest}}})


async def undo(client: Client, name: str) -> Job:
    """Let the job take the code again that it ran before the last update. Raises ClientError."""
    job = await client.get(name)
    check(job, None)
    wanted = find_undone(job)
    in_force = job.status.code.digest if job.status.code else None
    digest = wanted["digest"] if wanted is not None else None
    if wanted is not None and digest not in (None, in_force):
        found = [_digest_of(await _read(client, job, slot)) for slot in names.UPDATE_SLOTS]
        before = job.status.code.previous if job.status.code else None
        if digest not in found:
            number = before.revision if before is not None else wanted["revision"]
            raise InvalidError(
                f"{name}: the files of revision {number} are gone, in whose place an update came that was taken back "
                "before it ran: send them again (--code)"
            )
    return await client.patch(name, {"spec": {"code": wanted}})


def _is_in_force(job: Job, revision: Revision) -> bool:
    """Whether the worlds of the job are formed with this code already."""
    code = job.status.code
    if _is_awaited(job):
        return False  # this is what the job is to go on with
    if code is not None and code.digest is not None:
        return code.digest == revision.digest
    sent = (job.raw["metadata"].get("annotations") or {}).get(names.ANNOTATION_CODE)
    return revision.arguments is None and not revision.variables and sent == f"sha256:{revision.bundle.digest}"


async def _check_packages(client: Client, job: Job, bundle: Bundle) -> None:
    """Raises InvalidError if the packages that the pods have installed are not those that this code asks for."""
    if bundle.requirements is None:
        return
    volume = _find_volume(job, names.VOLUME_CODE).get("configMap") or {}
    wanted = next((file.content for file in bundle.files if file.path == bundle.requirements), b"")
    key = next((i["key"] for i in volume.get("items") or () if i["path"] == bundle.requirements), None)
    if key is not None:
        path = path_of("v1", "configmaps", job.namespace, volume["name"])
        had = await client.connection.ask(Request("GET", path, f"read configmap {volume['name']}"))
        if (had.get("data") or {}).get(key, "").encode() == wanted:
            return
    raise InvalidError(
        f"{bundle.requirements}: is not what {job.name} was submitted with, and pods install packages when they are "
        "created. Submit a new job, or leave the file out (exclude) to keep the packages that the pods have"
    )


async def _read(client: Client, job: Job, slot: str) -> dict[str, Any] | None:
    name = names.update_config_map_name(job.name, slot)
    path = path_of("v1", "configmaps", job.namespace, name)
    try:
        found: dict[str, Any] = await client.connection.ask(Request("GET", path, f"read configmap {name}"))
    except NotFoundError:
        return None
    if not _is_of(found, job):
        raise InvalidError(
            f"configmap {name}: is not one of {job.name}, which needs the name: rename or delete it; if it was an "
            "earlier job's of this name, it is deleted soon"
        )
    return found


def _is_of(config_map: Mapping[str, Any], job: Job) -> bool:
    owners = config_map["metadata"].get("ownerReferences") or ()
    return any(owner.get("kind") == names.KIND and owner.get("uid") == job.uid for owner in owners)


def _digest_of(config_map: Mapping[str, Any] | None) -> str | None:
    if config_map is None:
        return None
    annotations = config_map["metadata"].get("annotations") or {}
    return str(annotations.get(names.ANNOTATION_CODE, "")).removeprefix("sha256:")


async def _write(client: Client, job: Job, body: dict[str, Any], known: dict[str, Any] | None) -> None:
    name = body["metadata"]["name"]
    if known is None:
        path, method = path_of("v1", "configmaps", job.namespace), "POST"
    else:
        path, method = path_of("v1", "configmaps", job.namespace, name), "PUT"
        body["metadata"]["resourceVersion"] = known["metadata"]["resourceVersion"]
    await client.connection.ask(Request(method, path, f"write configmap {name}, the code of the job", (), body))


def _pod_spec(job: Job) -> Mapping[str, Any]:
    spec = job.spec
    found = {} if spec is None else spec.template.get("spec")
    return found if isinstance(found, dict) else {}


def _find_volume(job: Job, name: str) -> Mapping[str, Any]:
    return next((v for v in _pod_spec(job).get("volumes") or () if v.get("name") == name), {})


def _is_updatable(job: Job) -> bool:
    return all(_find_volume(job, f"{names.VOLUME_UPDATE}-{slot}") for slot in names.UPDATE_SLOTS)


def _find_scripts(job: Job) -> list[str]:
    """The files of the code that the commands of the job name."""
    prefix = f"{names.CODE_PATH}/"
    words = [
        str(word)
        for container in _pod_spec(job).get("containers") or ()
        for word in (*(container.get("command") or ()), *(container.get("args") or ()))
    ]
    return [word.removeprefix(prefix) for word in words if word.startswith(prefix) and word.endswith(".py")]
