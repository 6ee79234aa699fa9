"""Builds what pydantic puts off until a model is used.

That takes longer than everything that is read later, and whoever reads for the first time would wait for it.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from elasticjob_operator.api import base, wire


def build_models() -> None:
    """Build the validators of all models. To be called before the event loop runs."""
    for model in (*_walk(base.Model), *_walk(wire.Wire)):
        model.model_rebuild()
    for adapter in (wire.AGENT_MESSAGE, wire.HUB_MESSAGE):
        adapter.rebuild()


def _walk(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield model
    for one in model.__subclasses__():
        yield from _walk(one)
