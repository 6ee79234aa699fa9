"""Builds the watches other than that of the jobs: pods, nodes and child objects."""

from __future__ import annotations

from elasticjob_operator.api import names
from elasticjob_operator.apply import manifests
from elasticjob_operator.kube.cache import Cache
from elasticjob_operator.kube.client import Api
from elasticjob_operator.kube.intake import Intake
from elasticjob_operator.kube.watch import Watch
from elasticjob_operator.plan.plan import Kind
from elasticjob_operator.rest.request import path_of

SELECTOR = f"{names.LABEL_APP}={names.LABEL_APP_VALUE}"


def build_watches(
    api: Api, cache: Cache, intake: Intake, namespaces: tuple[str, ...], policy_version: str
) -> list[Watch]:
    """A watch for each kind and namespace, and one for nodes. No namespaces means the whole cluster.

    `policy_version`: the API version of PodDisruptionBudget that the cluster serves.
    """
    kinds = [(k, *_group_and_plural(k)) for k in (Kind.SERVICE, Kind.NETWORK_POLICY, Kind.CONFIG_MAP)]
    kinds.append((Kind.DISRUPTION_BUDGET, policy_version, "poddisruptionbudgets"))
    watches: list[Watch] = []
    for namespace in namespaces or ("",):
        watches.append(_watch_pods(api, cache, intake, namespace))
        watches += [_watch_children(api, cache, intake, namespace, *kind) for kind in kinds]
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


def _watch_children(
    api: Api, cache: Cache, intake: Intake, namespace: str, kind: Kind, group_version: str, plural: str
) -> Watch:
    return Watch(
        api,
        path_of(group_version, plural, namespace),
        replace=lambda items, version: cache.replace_children(kind.value, items, namespace),
        apply=lambda event, raw: cache.apply_child(kind.value, event, raw),
        selector=SELECTOR,
        is_metadata_enough=True,
        intake=intake,
    )


def _group_and_plural(kind: Kind) -> tuple[str, str]:
    resource = manifests.RESOURCES[kind]
    return resource.group_version, resource.plural
