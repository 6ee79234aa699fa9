"""How many examples the properties with the costliest ones are tried with."""

from __future__ import annotations

from typing import Final

from hypothesis import settings

MORE: Final = "more"  # the profile of `--long`


def tries(few: int, many: int) -> settings:
    """`few` in the normal run, `many` with `--long`, and thousands with `--hypothesis-profile=long`."""
    profile = settings.get_current_profile_name()
    wanted = {"default": few, MORE: many}.get(profile, max(many, settings().max_examples))
    return settings(max_examples=wanted, deadline=None)
