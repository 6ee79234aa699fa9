"""Whether a step counts. Two places decide it, and nothing goes around them: before an optimizer applies its part of a
step, and before the step is committed.

With gloo a lost peer is an exception in the collective. On a device a collective is only queued: after an abort the
device goes on with whatever is in the buffers, and nothing raises. But a loss is known here before its world is
aborted. So the question has two parts, in this order: the device has done everything, and the world still holds. Then
everything was reduced.

The permission for one optimizer is also that for the next one, if no collective was entered in between, and none was
waited for: all that the step needs of other ranks is here, and a loss that becomes known just then must not tear it. A
device waits for a collective only if somebody has called `wait()`, so one that was only begun before is not known.
"""

from __future__ import annotations

from collections.abc import Callable

from elasticjob.errors import WorldLostError


class Fence:
    """The decisions about the present step of a world that may be lost."""

    def __init__(
        self,
        hold: Callable[[], None],
        count: Callable[[], object],
        meet: Callable[[], None],
        is_queued: bool = True,
    ) -> None:
        """`hold` waits for the device and raises WorldLostError if the world does not hold then; `count` says how many
        collectives were entered, and waited for, or None; in `meet` all ranks wait for each other; `is_queued`:
        collectives are only queued when they return.
        """
        self.is_open = False  # there is a step
        self.is_divided = False  # collectives were entered or waited for between two optimizers of the step
        self.hold, self._count, self._meet, self._is_queued = hold, count, meet, is_queued
        self._before: object = None
        self._permitted: object = None  # the collectives of which all are right
        self._has_stepped = False
        self.is_empty = False  # an optimizer had no gradients to apply: this rank may be the only one
        self.is_skipped = False  # optimizers that a GradScaler has skipped were not meant to step, on any rank
        self.failure: Exception | None = None

    def begin(self) -> None:
        """A step begins; with several micro-batches, each of them."""
        if not self.is_open:
            self.is_divided = self._has_stepped = False
            self._permitted = self.failure = None
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
        if self._permitted is not None and self._before == self._permitted:
            return
        self.is_divided = self._has_stepped
        self._asking(self.hold, agree)

    def end_applying(self) -> None:
        """The optimizer has applied the step. Raises WorldLostError if it has used other ranks' values that are wrong:
        the state is torn then.
        """
        after = self._count()
        if self._is_queued and after != self._before:  # an optimizer that is spread over the ranks
            self._asking(self.hold)
        self._permitted, self._has_stepped = after, True

    def skip(self) -> None:
        """A GradScaler is about to learn from the gradients whether optimizers had to skip the step. Raises
        WorldLostError if it must not: it scales less from then on, and nobody takes that back.

        So the step counts as soon as it may. Who finds out about a loss before that gets it from the others. An
        optimizer with a scaler of its own may still be to come, and asks again.
        """
        self._check()
        if self._permitted is None or self._count() != self._permitted:  # more was reduced than is known to be right
            self._asking(self.hold)
        self.is_skipped = True

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

    def commit(self, is_applied: bool) -> None:
        """The script's block has ended. Raises WorldLostError if the step does not count. `is_applied`: each optimizer
        has stepped, on all ranks or on none; or was skipped, if `is_skipped`.

        Each call of an optimizer had the permission of the fence, and so has a GradScaler that skipped one. If one is
        missing otherwise, either all ranks have left it out, or this script has caught the error of a collective, and
        the others will not come.
        """
        if not is_applied or self.is_empty or self.failure is not None:
            self.hold()
            self._meet()
        self.close()

    def close(self) -> None:
        """The step is over, or broken off."""
        self.is_open = self.is_skipped = False
        self.failure = None  # an error keeps the frames that it has ended
