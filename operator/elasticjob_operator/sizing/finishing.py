"""Size source for a finishing world: members that succeeded are not replaced, and no pod joins. Pure."""

from __future__ import annotations

from elasticjob_operator.sizing.values import Answer, View


def ask(view: View, size: int) -> Answer:
    """The members of the last world that have not succeeded yet, whatever size is wanted."""
    if not view.is_ending:
        return Answer()
    return Answer(target=view.members - view.ended, reason="some members have succeeded and the others are finishing")
