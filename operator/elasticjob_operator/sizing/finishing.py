"""The size of a world that ends: members that have ended well are not replaced, and nobody joins the rest. Pure."""

from __future__ import annotations

from elasticjob_operator.sizing.values import Answer, View


def ask(view: View, size: int) -> Answer:
    """What is left of the last world, whatever is wanted."""
    if not view.is_ending:
        return Answer()
    return Answer(target=view.members - view.ended, reason="members have ended well, and the others finish")
