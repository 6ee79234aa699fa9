"""Changes the CPU and memory of running pods, one after the other: what one is refused is refused to all."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from elasticjob_operator.api.podtemplate import find_sizes
from elasticjob_operator.apply import manifests, refusals
from elasticjob_operator.kube.cache import Cache
from elasticjob_operator.kube.client import Api
from elasticjob_operator.model.observe import Job
from elasticjob_operator.plan.policy import Resize
from elasticjob_operator.rest.errors import ApiError
from elasticjob_operator.rest.request import STRATEGIC_PATCH, path_of

logger = logging.getLogger(__name__)


async def resize_all(api: Api, cache: Cache, job: Job, resizes: Sequence[Resize]) -> tuple[str, str]:
    """The template that the API server does not resize a pod to, and why. Raises ApiError to be tried again."""
    for resize in resizes:
        assert job.spec is not None, "pods of valid jobs only are resized"
        path = path_of("v1", "pods", job.namespace, resize.name, "resize")
        body = manifests.build_resize(resize)
        since = cache.lists.count()
        try:
            raw = await api.request("PATCH", path, body, content_type=STRATEGIC_PATCH, job=job.name)
        except ApiError as error:
            why = refusals.explain_resize(resize.name, error)
            if why is None:
                raise
            if why:
                return job.spec.template_hash, why
            continue
        cache.put_pod(raw, since)
        if not set(resize.sizes) <= set(find_sizes(raw["spec"]["containers"])):
            return job.spec.template_hash, "the API server stores other amounts: a webhook may want them"
        logger.info("%s/%s: resized %s", job.namespace, job.name, resize.name)
    return "", ""
