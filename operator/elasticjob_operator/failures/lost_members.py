"""Lost members whose pods have not ended yet: the next world begins before the kubelet tells how they ended. Pure.

The end of such a pod is the failure of a rank of the world that it broke, not of the world that goes on without it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final

from elasticjob_operator import api
from elasticjob_operator.failures.classify import Failure

_MOST: Final = 32  # as many as there are failures in a status


def update(
    noted: Sequence[api.LostMember], lost: Iterable[api.Member], generation: int, awaited: Collection[str]
) -> list[api.LostMember]:
    """The members to remember, with those that this generation lost. `awaited`: pods (UIDs) not counted yet."""
    new = [api.LostMember(uid=member.uid, rank=member.rank, generation=generation) for member in lost]
    return [one for one in (*new, *noted) if one.uid in awaited][:_MOST]


def place(failure: Failure, noted: Sequence[api.LostMember], uid: str) -> Failure:
    """The failure of this pod with the rank and the generation that it had, if it was a lost member."""
    found = next((one for one in noted if one.uid == uid), None)
    return failure if found is None else replace(failure, rank=found.rank, generation=found.generation)
