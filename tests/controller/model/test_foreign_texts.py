"""What nobody sees in a text of somebody else never reaches a log, a terminal or a condition."""

from __future__ import annotations

import sys
import unicodedata

import pytest

from controller.builders import NOW
from elasticjob_operator import text
from elasticjob_operator.model import errortext
from elasticjob_operator.plan import reporting

# Signs of scripts, which are printed, although Unicode counts them as format characters.
PRINTED = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}
JOINERS = {0x200C, 0x200D}  # Persian, Hindi and emoji are spelt with them
UNSEEN = [
    sign
    for code in range(sys.maxunicode + 1)
    if unicodedata.category(sign := chr(code)) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    and code not in PRINTED | JOINERS
    and sign not in "\t\n\r"
]
# Letters and marks of no width, of which Unicode says that they are not shown.
IGNORED = (
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u3164\ufe00\ufe0d\uffa0\ufff0\U000e0100\U000e01ef\U000e0fff"
)
WRITTEN = [
    pytest.param("loss=0.5 in step 3 (naïve, 学習, обучение)", id="scripts"),
    pytest.param("می\u200cخواهم क्\u200dष", id="spelt with joiners"),
    pytest.param("👩\u200d🔬 ❤\ufe0f ☎\ufe0e", id="emoji"),
    pytest.param("\u0600\u0661\u06dd", id="signs of numbers"),
    pytest.param("a\u0301 e\u0323", id="combining marks"),
]


def test_what_nobody_sees_is_shown_or_gone() -> None:
    for unseen in (*UNSEEN, *IGNORED):
        assert text.printable(f"a{unseen}b") == "a�b", f"U+{ord(unseen):04X}"
        assert text.clean(f"a{unseen}b") == "a b", f"U+{ord(unseen):04X}"
    assert errortext.clean("".join(("a", *UNSEEN, *IGNORED, "b"))) == "ab"
    assert {"\u061c", "\u200b", "\ufeff", "\u00ad", "\u2063", "\U000e0041"} <= set(UNSEEN)


@pytest.mark.parametrize("written", WRITTEN)
def test_what_people_write_stays(written: str) -> None:
    assert text.printable(written) == text.clean(written) == errortext.clean(written) == written


def test_lines_and_tabs_stay_where_they_may() -> None:
    assert text.printable("a\tb\nc\rd") == "a\tb\nc�d"
    assert text.clean("a\tb\nc\rd") == "a b c d"


def test_a_condition_has_none_of_it() -> None:
    """`kubectl describe` shows it; the text of an agent may be part of it."""
    (made,) = reporting.with_condition([], "Degraded", True, "Reason", "a\u061c\x1b[31mb\nc", NOW)
    assert made.message == "a��[31mb\nc"
