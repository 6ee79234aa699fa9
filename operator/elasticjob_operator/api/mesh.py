"""The mesh of a job: how its ranks hold the copies of a model that needs several of them. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from elasticjob_operator.api.base import Model


class MeshDimension(Model):
    """A dimension of the script's DeviceMesh."""

    name: str = Field(max_length=63, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", description="As in mesh_dim_names.")
    size: Annotated[int, Field(ge=1, le=100_000)] | None = Field(
        default=None,
        description="Its number of ranks, which no change of the world changes. Default: what is left of the world.",
    )


@dataclass(frozen=True, slots=True)
class Layout:
    """How the pods of a world hold the copies of the model.

    A *group* of pods holds whole copies, and nothing else: it has `outer` runs of `inner` neighbours each. The runs of
    all groups are next to each other, once for each of the `outer` ones. Without a mesh each pod is a group.
    """

    step: int = 1  # only multiples of it are worlds of whole copies, in pods
    outer: int = 1
    inner: int = 1

    @property
    def pods(self) -> int:
        """The number of pods of a group."""
        return self.outer * self.inner


@dataclass(frozen=True, slots=True)
class Cut:
    """How the ranks of a world hold the copies of the model: each copy is `outer` runs of `inner` neighbours."""

    outer: int = 1
    inner: int = 1
    nproc: int = 1  # ranks of a pod

    @property
    def parts(self) -> int:
        """The number of parts of a copy: each rank has one."""
        return self.outer * self.inner

    @property
    def layout(self) -> Layout:
        return Layout(_count_pods(self.parts, self.nproc), self.outer, _count_pods(self.inner, self.nproc))

    def find_parts(self, pod: int, pods: int) -> frozenset[int]:
        """The parts that the ranks of a pod have, in a world of so many pods that hold whole copies."""
        each = pods * self.nproc // self.outer
        ranks = range(pod * self.nproc, (pod + 1) * self.nproc)
        return frozenset(rank // each * self.inner + rank % each % self.inner for rank in ranks)


def find_cut(mesh: Sequence[MeshDimension], nproc: int) -> Cut:
    """The cut of a mesh with so many ranks in each pod; a copy has one rank for each of the sizes' combinations."""
    at = next(number for number, dimension in enumerate(mesh) if dimension.size is None)
    outer = math.prod(dimension.size or 1 for dimension in mesh[:at])
    return Cut(outer, math.prod(dimension.size or 1 for dimension in mesh[at:]), nproc)


def _count_pods(ranks: int, nproc: int) -> int:
    """The least number of pods whose ranks can be divided into such parts."""
    return ranks // math.gcd(ranks, nproc)
