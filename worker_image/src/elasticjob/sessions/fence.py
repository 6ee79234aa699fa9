"""Whether a step counts. Two places decide it, and nothing goes around them: before an optimizer applies its part of a
step, and before the step is committed.

With gloo a lost peer is an exception in the collective. On a device a collective is only queued: after an abort the
device goes on with whatever is in the buffers, and nothing raises. But a loss is known here before its world is
aborted. So the question has two parts, in this order: the device has done everything, and the world still holds. Then
everything was reduced.

The permission for one optimizer is also that for the next one, if nothing was entered in between: all that the step
needs of other ranks is here, and a loss that becomes known just then must not tear it. A stream of a device waits only
for what somebody has told it to wait for, and nobody sees all the ways to do that. So where another optimizer follows,
the whole device is waited for, with all that was begun before. That may not be done if a message to or from one other
rank is under way, which this one may send after it has stepped: then the next optimizer asks again.

What a script does behind its optimizers, such as to average parameters or to follow a reduced loss, has no permission.
If a collective was queued there, it is asked about before the step is committed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from elasticjob.errors import WorldLostError


class Seen(NamedTuple):
    """What this process has done so far with other ranks."""

    entered: int | None = 0  # collectives, and replays of graphs that may have some; None if torch does not tell
    waited: int = 0  # calls that wait for one
    sent: int = 0  # messages from one rank to another that were begun, to or from here
    queued: int = 0  # of the collectives entered: those of a device, and replays

    def has_begun_more(self, before: Seen | None) -> bool:
        return before is None or self.entered is None or (self.entered, self.sent) != (before.entered, before.sent)

    def has_queued_more(self, before: Seen, has_waited_for_all: bool) -> bool:
        """Whether the device may work at more than it did before; not what gloo does, whose errors are raised."""
        if self.entered is None or before.entered is None:
            return True
        if (self.queued, self.sent) != (before.queued, before.sent):
            return True
        of_gloo = (self.entered - self.queued) - (before.entered - before.queued)
        return not has_waited_for_all and self.waited - before.waited > of_gloo


class Fence:
    """The decisions about the present step of a world that may be lost."""

    def __init__(
        self,
        hold: Callable[[], None],
        count: Callable[[], Seen],
        meet: Callable[[], None],
        is_queued: bool = True,
        hold_all: Callable[[], None] | None = None,
    ) -> None:
        """`hold` waits for the script's stream and raises WorldLostError if the world does not hold then; `hold_all`
        does so for the whole device; in `meet` all ranks wait for each other; `is_queued`: collectives are only queued
        when they return.
        """
        self.is_open = False  # there is a step
        self.is_divided = False  # collectives were entered or waited for between two optimizers of the step
        self.hold, self._count, self._meet, self._is_queued = hold, count, meet, is_queued
        self._hold_all = hold_all or hold
        self._before = Seen()  # when the optimizer began
        self._sent = 0  # messages before this world
        self._permitted: Seen | None = None  # all of it is right
        self._known: Seen | None = None  # the same, also if a scaler was permitted to skip
        self._left: Seen | None = None  # at the end of the last block
        self._is_of_all = not is_queued  # the permission is for whatever was begun, and not only for a stream
        self.is_followed = False  # by another optimizer: that has been in some step of this process
        self.has_stepped = False  # an optimizer, in this step
        self.is_empty = False  # an optimizer had no gradients to apply: this rank may be the only one
        self.has_trail = False  # something was queued behind the optimizers in some step of this process
        self.is_skipped = False  # optimizers that a GradScaler has skipped were not meant to step, on any rank
        self.failure: Exception | None = None

    def enter_world(self) -> None:
        """Whatever was begun before is done."""
        self._sent = self._count().sent
        self._left = None

    def begin(self) -> None:
        """A step begins; with several micro-batches, each of them."""
        if not self.is_open:
            self.is_divided = self.has_stepped = False
            self._permitted = self._known = self.failure = None
            self._is_of_all = not self._is_queued
            self.is_empty = False
        self.is_open = True

    def note_failure(self, error: Exception) -> None:
        """The world has failed in this step. The script may catch the error, and go on without reduced gradients."""
        self.failure = error

    def begin_applying(self, agree: Callable[[], None]) -> None:
        """An optimizer is about to apply its part of the step, once all ranks `agree`. Raises WorldLostError if it must
        not.
        """
        self._check()
        self._before = self._count()  # while the device still works
        if self._is_of_all and self._is_permitted(self._before):
            return
        # A question more in the first step in which another one follows does not divide those after it.
        has_begun_more = self._before.has_begun_more(self._permitted)
        self.is_divided = self.has_stepped and (has_begun_more or self.is_followed)
        self.is_followed = self.is_followed or self.has_stepped
        self._asking(self._hold_for(self._before), agree)

    def _is_permitted(self, now: Seen) -> bool:
        """Whether nothing has come since that the permission is not for, as far as anybody sees that."""
        if self._permitted is None or now.has_begun_more(self._permitted):
            return False
        return (self._is_of_all and self._is_queued) or now.waited == self._permitted.waited

    def _hold_for(self, now: Seen) -> Callable[[], None]:
        """Ask about the whole device where that says something of the optimizers that follow, and is sure to end."""
        if not self._is_queued:
            return self.hold
        self._is_of_all = self.is_followed and now.sent == self._sent
        return self._hold_all if self._is_of_all else self.hold

    def end_applying(self) -> None:
        """The optimizer has applied the step. Raises WorldLostError if it has used other ranks' values that are wrong:
        the state is torn then.
        """
        after = self._count()
        has_waited = after.waited != self._before.waited and not self._is_of_all
        if self._is_queued and (has_waited or after.has_begun_more(self._before)):  # it is spread over the ranks
            self._asking(self._hold_for(after))
        self._permitted = self._known = after
        self.has_stepped = True

    def skip(self) -> None:
        """A GradScaler is about to learn from the gradients whether optimizers had to skip the step. Raises
        WorldLostError if it must not: it scales less from then on, and nobody takes that back.

        So the step counts as soon as it may. Who finds out about a loss before that gets it from the others. An
        optimizer with a scaler of its own may still be to come, and asks again.
        """
        self._check()
        now = self._count()
        if not self._is_permitted(now) or (self.is_followed and not self._is_of_all):
            self._asking(self._hold_for(now))  # more may have been reduced than is known to be right
        self._known, self.is_skipped = now, True

    def is_trailed(self) -> bool:
        """Whether more has been queued behind the optimizers of this step."""
        return self._is_queued and self.is_open and self._has_trail(self._count())

    def _has_trail(self, now: Seen) -> bool:
        return self._known is not None and now.has_queued_more(self._known, self._is_of_all)

    def _check(self) -> None:
        if self.failure is not None:
            raise WorldLostError("a collective of this step has failed") from self.failure

    def _asking(self, *questions: Callable[[], None]) -> None:
        try:
            for ask in questions:
                ask()
        except Exception as error:  # the script may catch this one, too
            self.failure = error
            raise

    def commit(self, is_applied: bool) -> bool:
        """The script's block has ended. Raises WorldLostError if the step does not count. `is_applied`: each optimizer
        has stepped, on all ranks or on none; or was skipped, if `is_skipped`. Whether it was `is_trailed`.

        Each call of an optimizer had the permission of the fence, and so has a GradScaler that skipped one. If one is
        missing otherwise, either all ranks have left it out, or this script has caught the error of a collective, and
        the others will not come.
        """
        is_trailed = False
        now = self._left = self._count() if self._is_queued else None
        if not is_applied or self.is_empty or self.failure is not None:
            self.hold()
            self._meet()
        elif now is not None and self._has_trail(now):
            (self._hold_all if now.sent == self._sent else self.hold)()
            self.has_trail = is_trailed = True
        self.close()
        return is_trailed

    def leave(self) -> None:
        """A block ends, and all of it counts."""
        self._left = self._count() if self._is_queued else None

    def has_left_more(self) -> bool:
        """Whether more has been queued since the last block."""
        return self._left is not None and self._count().has_queued_more(self._left, has_waited_for_all=True)

    def close(self) -> None:
        """The step is over, or broken off."""
        self.is_open = self.is_skipped = False
        self.failure = None  # an error keeps the frames that it has ended
