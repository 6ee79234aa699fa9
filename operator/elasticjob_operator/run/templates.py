"""Reads the template of a job that waits for one: from the job's namespace, else from the operator's."""

from __future__ import annotations

from typing import Final

from elasticjob_operator.api import names
from elasticjob_operator.kube.client import Api
from elasticjob_operator.model.observe import Job
from elasticjob_operator.rest.errors import ApiError, UnreadableError
from elasticjob_operator.rest.request import path_of
from elasticjob_operator.templates import taking

# Many times what a template may have: its text may take six bytes for one, and kubectl keeps it in an annotation.
MOST_BYTES: Final = 2**19


class Templates:
    """`shared`: the namespace whose templates jobs of all namespaces may name."""

    def __init__(self, api: Api, shared: str) -> None:
        self._api = api
        self._shared = shared

    async def find(self, job: Job) -> taking.Found | taking.Refusal | None:
        """The template that the job waits for. Raises ApiError. No request is sent for a job that waits for none."""
        awaited = job.awaited
        if awaited is None or not awaited.is_ours or job.deleting:
            return None
        places = list(dict.fromkeys((job.namespace, self._shared)))
        forbidden = []
        for place in places:
            path = path_of(names.API_VERSION, names.TEMPLATE_PLURAL, place, awaited.name)
            try:
                raw = await self._api.request("GET", path, job=job.name, most_bytes=MOST_BYTES)
                return taking.read_template(raw)
            except UnreadableError as error:
                return taking.refuse(awaited.name, place, f"cannot be read: {error.why}: remove what is not needed")
            except ApiError as error:
                if error.status == 403:
                    forbidden.append(place)
                elif error.status != 404:
                    raise
        return taking.describe_missing(awaited.name, places, forbidden)
