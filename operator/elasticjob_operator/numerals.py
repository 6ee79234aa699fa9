"""Numbers that somebody else wrote: a tenant, a pod, an agent, a node, the API server. Pure.

The only place where foreign text becomes a number, as `scripts/check_numbers.py` checks. A text of eight characters can
stand for a number of a gigabyte, on which one conversion takes minutes. Therefore the length is checked first, then the
form, then the magnitude, and only then is anything computed. All of it takes constant time.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Final

from elasticjob_operator import text as texts

MOST: Final = 2**53  # that a JSON number holds exactly
LONGEST: Final = 64  # characters of a number
_DIGITS: Final = re.compile(r"[0-9]+")
_DECIMAL: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")


def read_count(value: object, most: int = MOST, *, least: int = 0) -> int | None:
    """A whole number from `least` to `most`, as a number or in digits; None for anything else.

    A number in JSON may be below 0, if `least` is; digits have no sign, no spaces, and are those of ASCII.
    """
    if isinstance(value, str) and len(value) <= LONGEST and _DIGITS.fullmatch(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        return None
    return value


def read_decimal(value: object) -> Decimal | None:
    """An exact number of at most `LONGEST` characters and three digits of an exponent; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    if isinstance(value, int) and value.bit_length() > 3 * LONGEST:
        return None  # in digits it would be longer
    text = value if isinstance(value, str) else str(value)
    return Decimal(text) if len(text) <= LONGEST and _DECIMAL.fullmatch(text) else None


def read_real(value: object) -> float | None:
    """A finite floating-point number; None for anything else."""
    number = read_decimal(value)
    found = math.inf if number is None else float(number)
    return found if math.isfinite(found) else None


def shorten(value: object) -> str:
    """A value that is no number, as an error message names it."""
    if isinstance(value, str) and len(value) > LONGEST:
        return f"a text of {len(value)} characters"
    if isinstance(value, int) and value.bit_length() > 3 * LONGEST:
        return "a number of more digits than fit"
    return texts.clean(str(value), LONGEST) if isinstance(value, (str, int, float)) else f"a {type(value).__name__}"
