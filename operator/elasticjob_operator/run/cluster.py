"""What the operator reads of the cluster beside the jobs: what it serves, and then pods, nodes and child objects."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from elasticjob_operator.api import names
from elasticjob_operator.apply import manifests
from elasticjob_operator.kube.cache import Cache
from elasticjob_operator.kube.client import Api
from elasticjob_operator.kube.intake import Intake
from elasticjob_operator.kube.supervise import insist
from elasticjob_operator.kube.watch import Watch
from elasticjob_operator.model import served
from elasticjob_operator.model.served import Served
from elasticjob_operator.plan.plan import Kind
from elasticjob_operator.rest.errors import ApiError
from elasticjob_operator.rest.request import JSON, path_of

logger = logging.getLogger(__name__)

NO_CRD = f"the CustomResourceDefinition {names.PLURAL}.{names.GROUP} is not installed: apply crds/"
SELECTOR = f"{names.LABEL_APP}={names.LABEL_APP_VALUE}"


async def discover(api: Api, *, with_gangs: bool, with_image_volumes: bool) -> Served:
    """What the cluster serves. The scheduler's own PodGroups and images as volumes count only where they are wanted."""
    found = served.read_groups(await insist(lambda: api.request("GET", "/apis")))
    for version in served.VERSIONS[Kind.POD_GROUP]:
        listed: Mapping[str, Any] = {}
        if with_gangs and version in found.group_versions:
            listed = await insist(functools.partial(_list_kinds, api, version))
        found = served.keep_listed(found, version, listed, Kind.POD_GROUP)
    if with_gangs and not found.has(Kind.POD_GROUP):
        wanted = " or ".join(served.VERSIONS[Kind.POD_GROUP])
        logger.warning("the cluster serves no PodGroup in %s: the default scheduler places pods one by one", wanted)
    if with_image_volumes:
        found = replace(found, version=served.read_version(await insist(lambda: api.request("GET", "/version"))))
        if not found.has_image_volumes:
            logger.warning("the cluster has no image volumes: an init container copies the runtime")
    return found


async def _list_kinds(api: Api, version: str) -> Mapping[str, Any]:
    """The kinds of this version; none where another server answers, which does not know it."""
    try:
        found: Mapping[str, Any] = await api.request("GET", f"/apis/{version}")
    except ApiError as error:
        if error.status != 404:
            raise
        return {}
    return found


async def await_crd(api: Api, namespaces: tuple[str, ...]) -> None:
    """Return once ElasticJobs are served, since the operator may be installed before the CRD."""
    path = path_of(names.API_VERSION, names.PLURAL, namespaces[0] if namespaces else "")
    while True:
        try:
            await api.fetch(path, {"limit": "1"}, JSON)  # not decoded: the job may be anything
            return
        except ApiError as error:
            logger.warning(NO_CRD if error.status == 404 else f"the API server: {error}")
            await asyncio.sleep(1.0)


def build_watches(api: Api, cache: Cache, intake: Intake, namespaces: tuple[str, ...], found: Served) -> list[Watch]:
    """A watch for each kind and namespace, and one for nodes. No namespaces means the whole cluster."""
    kinds = [Kind.SERVICE, Kind.NETWORK_POLICY, Kind.CONFIG_MAP, Kind.DISRUPTION_BUDGET]
    kinds += [Kind.AUTOSCALER] if found.has(Kind.AUTOSCALER) else []
    watches: list[Watch] = []
    for namespace in namespaces or ("",):
        watches.append(_watch_pods(api, cache, intake, namespace))
        watches += [_watch_children(api, cache, intake, namespace, kind, found) for kind in kinds]
    nodes = Watch(
        api,
        path_of("v1", "nodes"),
        replace=lambda found, version: cache.replace_nodes(found),
        apply=cache.apply_node,
        required=False,
        intake=intake,
        key="name",
    )
    return [*watches, nodes]


def _watch_pods(api: Api, cache: Cache, intake: Intake, namespace: str) -> Watch:
    return Watch(
        api,
        path_of("v1", "pods", namespace),
        replace=lambda uids, version: cache.replace_pods(uids, version, namespace),
        apply=cache.apply_pod,
        selector=SELECTOR,
        intake=intake,
    )


def _watch_children(api: Api, cache: Cache, intake: Intake, namespace: str, kind: Kind, found: Served) -> Watch:
    resource = manifests.resource_of_kind(kind, found)
    # An autoscaler's version changes with its status, and it has no generation: what others write to it stays.
    is_sound = kind is Kind.AUTOSCALER
    return Watch(
        api,
        path_of(resource.group_version, resource.plural, namespace),
        replace=lambda uids, version: cache.replace_children(kind.value, uids, version, namespace),
        apply=lambda event, raw: cache.apply_child(kind.value, event, raw, is_sound=is_sound),
        selector=SELECTOR,
        required=kind is not Kind.AUTOSCALER,
        is_metadata_enough=True,
        intake=intake,
    )
