"""Builds the watches other than that of the jobs: pods, nodes and child objects."""

from __future__ import annotations

from elasticjob_operator.api import names
from elasticjob_operator.apply import manifests
from elasticjob_operator.kube.cache import Cache
from elasticjob_operator.kube.client import Api
from elasticjob_operator.kube.intake import Intake
from elasticjob_operator.kube.watch import Watch
from elasticjob_operator.model.served import Served
from elasticjob_operator.plan.plan import Kind
from elasticjob_operator.rest.request import path_of

SELECTOR = f"{names.LABEL_APP}={names.LABEL_APP_VALUE}"


def build_watches(api: Api, cache: Cache, intake: Intake, namespaces: tuple[str, ...], served: Served) -> list[Watch]:
    """A watch for each kind and namespace, and one for nodes. No namespaces means the whole cluster."""
    kinds = [Kind.SERVICE, Kind.NETWORK_POLICY, Kind.CONFIG_MAP, Kind.DISRUPTION_BUDGET]
    kinds += [Kind.AUTOSCALER] if served.has(Kind.AUTOSCALER) else []
    watches: list[Watch] = []
    for namespace in namespaces or ("",):
        watches.append(_watch_pods(api, cache, intake, namespace))
        watches += [_watch_children(api, cache, intake, namespace, kind, served) for kind in kinds]
    nodes = Watch(
        api,
        path_of("v1", "nodes"),
        replace=lambda items, version: cache.replace_nodes(items),
        apply=cache.apply_node,
        required=False,
        intake=intake,
    )
    return [*watches, nodes]


def _watch_pods(api: Api, cache: Cache, intake: Intake, namespace: str) -> Watch:
    return Watch(
        api,
        path_of("v1", "pods", namespace),
        replace=lambda items, version: cache.replace_pods(items, version, namespace),
        apply=cache.apply_pod,
        selector=SELECTOR,
        intake=intake,
    )


def _watch_children(api: Api, cache: Cache, intake: Intake, namespace: str, kind: Kind, served: Served) -> Watch:
    resource = manifests.resource_of_kind(kind, served)
    # An autoscaler's version changes with its status, and it has no generation: what others write to it stays.
    is_sound = kind is Kind.AUTOSCALER
    return Watch(
        api,
        path_of(resource.group_version, resource.plural, namespace),
        replace=lambda items, version: cache.replace_children(kind.value, items, namespace),
        apply=lambda event, raw: cache.apply_child(kind.value, event, raw, is_sound=is_sound),
        selector=SELECTOR,
        required=kind is not Kind.AUTOSCALER,
        is_metadata_enough=True,
        intake=intake,
    )
