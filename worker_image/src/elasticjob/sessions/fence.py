"""Whether a step counts. Two places decide it, and nothing goes around them: before the optimizer applies a step, and
before the step is committed.

With gloo a lost peer is an exception in the collective. On a device a collective is only queued: after an abort the
device goes on with whatever is in the buffers, and nothing raises. But a loss is known here before its world is
aborted. So the question has two parts, in this order: the device has done everything, and the world still holds. Then
everything was reduced.
"""

from __future__ import annotations

from collections.abc import Callable

from elasticjob.errors import WorldLostError


class Fence:
    """The decisions about the present step of a world that may be lost."""

    def __init__(
        self,
        hold: Callable[[], None],
        count: Callable[[], int | None],
        meet: Callable[[], None],
    ) -> None:
        """`hold` waits for the device and raises WorldLostError if the world does not hold then; `count` says how many
        collectives were queued, or None; in `meet` all ranks wait for each other.
        """
        self.is_open = False  # there is a step
        self.hold, self._count, self._meet = hold, count, meet
        self._before: int | None = None
        self._failure: Exception | None = None

    def begin(self) -> None:
        """A step begins; with several micro-batches, each of them."""
        self.is_open, self._failure = True, None

    def note_failure(self, error: Exception) -> None:
        """A backward pass has failed. The script may catch the error and go on; its gradients are not reduced."""
        self._failure = error

    def begin_applying(self, agree: Callable[[], None]) -> None:
        """The optimizer is about to apply the step, once all ranks `agree`. Raises WorldLostError if it must not."""
        if self._failure is not None:
            raise WorldLostError("the backward pass has failed") from self._failure
        self._before = self._count()  # while the device still works
        self.hold()
        agree()

    def end_applying(self) -> None:
        """The optimizer has applied the step. Raises WorldLostError if it has used other ranks' values that are wrong:
        the state is torn then.
        """
        if self._count() != self._before:  # an optimizer that is spread over the ranks
            self.hold()

    def commit(self, is_applied: bool) -> None:
        """The script's block has ended. Raises WorldLostError if the step does not count.

        Each call of the optimizer had the permission of the fence. Without any, either all ranks have skipped the step,
        like a GradScaler, or this script has caught the error of a collective, and the others will not come.
        """
        if not is_applied:
            self.hold()
            self._meet()
        self.is_open = False
