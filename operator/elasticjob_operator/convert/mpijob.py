"""Kubeflow's MPIJob (`kubeflow.org/v2beta1`). The launcher's command is run by every worker, under torchrun."""

from __future__ import annotations

import copy
from typing import Any, Final

from elasticjob_operator.convert import commands, launcher, pods
from elasticjob_operator.convert.draft import ConversionError, Draft, Source

_ROLES: Final = "spec.mpiReplicaSpecs"


def fill(draft: Draft) -> None:
    source = draft.source
    roles = source.part("mpiReplicaSpecs")
    starter, worker = roles.part("Launcher"), roles.part("Worker")
    roles.drop_other_roles()
    if not starter.values:
        raise ConversionError(f"{_ROLES}.Launcher: is required: its command starts the training")
    separate = bool(worker.values)
    draft.spec["nprocPerNode"] = source.take_number("slotsPerWorker")
    starts = _first_container(starter, "mpi-launcher")
    count = worker.take_number("replicas") if separate else 0
    workers = 1 if count is None else count
    if source.take("runLauncherAsWorker") or not separate:
        workers += 1  # the launcher's pod has ranks of its own
    chosen = worker if separate else starter
    template = copy.deepcopy(chosen.take("template"))
    path = f"{chosen.path}.template"
    container = _container_of(template, f"{path}.spec", "mpi-worker" if separate else "mpi-launcher")
    _drop_ssh(draft, container, f"{path}.spec.containers[]")
    commands.set_command(draft, container, _read_command(draft, starts))
    pods.take_template(draft, template, path, str(container.get("name") or "mpi-worker"))
    launcher.take_arguments(draft, f"{starter.path}.template")
    pods.take_bounds(draft, None, None, workers, f"{chosen.path}.replicas")
    pods.add_restart_rules(draft, chosen.take("restartPolicy"), f"{chosen.path}.restartPolicy")
    _finish_launcher(draft, starter, starts, separate=separate)
    worker.finish()
    pods.take_run_policy(draft, _run_policy(source))
    source.take("mpiImplementation")
    source.take("mainContainer")
    source.drop(
        {
            "sshAuthMountPath": "was dropped: the pods do not use SSH",
            "launcherCreationPolicy": "was dropped: there is no launcher pod",
        }
    )
    source.finish()


def _run_policy(source: Source) -> Source:
    """The run policy; v1 of the API has a part of it in the spec."""
    run = source.part("runPolicy")
    for key in ("cleanPodPolicy", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished"):
        value = source.take(key)
        if value is not None:
            run.values.setdefault(key, value)
    return run


def _container_of(template: object, path: str, name: str) -> dict[str, Any]:
    """The container of a template that is named so, or its first."""
    spec = template.get("spec") if isinstance(template, dict) else None
    containers = spec.get("containers") if isinstance(spec, dict) else None
    if not isinstance(containers, list) or not containers or not all(isinstance(c, dict) for c in containers):
        raise ConversionError(f"{path}.containers: is required: give at least one container")
    found: dict[str, Any] = next((c for c in containers if c.get("name") == name), containers[0])
    return found


def _first_container(role: Source, name: str) -> Source:
    path = f"{role.path}.template.spec"
    return Source(_container_of(role.values.get("template"), path, name), f"{path}.containers[]", role.draft)


def _read_command(draft: Draft, starts: Source) -> list[str]:
    words = [*starts.take_texts("command"), *starts.take_texts("args")]
    if not words:
        raise ConversionError(f"{starts.path}.command: is required: it is in the image; write it here")
    plain = commands.unwrap(words)
    if plain is None:
        raise ConversionError(
            f"{starts.path}.command: has more than one shell command: leave only the one that starts the training, "
            "and do the rest in the image or in the script"
        )
    env = starts.values.get("env")
    entries = [e for e in env if isinstance(e, dict)] if isinstance(env, list) else []
    passed = {str(e["name"]): str(e["value"]) for e in entries if "name" in e and "value" in e}
    return commands.to_torchrun(draft, plain, f"{starts.path}.command", passed)


def _drop_ssh(draft: Draft, container: dict[str, Any], path: str) -> None:
    """A worker of MPI waits for SSH connections; ours trains."""
    words = [str(w) for key in ("command", "args") for w in _as_list(container.get(key))]
    if words and not any("sshd" in word for word in words):
        draft.warn(f"{path}.command", f"{' '.join(words)} was replaced by the launcher's command")
    for probe in ("readinessProbe", "livenessProbe", "startupProbe"):
        if container.pop(probe, None) is not None:
            draft.warn(f"{path}.{probe}", "was dropped: it tested the SSH server")


def _as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _finish_launcher(draft: Draft, starter: Source, starts: Source, *, separate: bool) -> None:
    count = starter.take_number("replicas")
    if count not in (None, 1) and separate:
        starter.warn("replicas", f"{count} was dropped: there is no launcher pod")
    if separate:
        starter.take("template")
        starter.take("restartPolicy")
        known = {"name", "image", "imagePullPolicy", "securityContext", "resources"}
        for key in sorted(set(starts.values) - known):
            draft.warn(
                f"{starts.path}.{key}", "was dropped: the pods are made from the Worker's template; add it there"
            )
    starter.finish()
