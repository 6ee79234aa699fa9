"""Expressions for lines: they match what Python's match, take no long time, or say what to write instead."""

from __future__ import annotations

import random
import re

import pytest

from controller.counted_work import count_calls
from elasticjob_operator.api import patterns
from elasticjob_operator.api.patterns import PatternError, compile_pattern


def draw(chance: random.Random, depth: int = 0) -> str:
    """An expression at random."""
    kind = chance.randrange(9)
    if depth > 3 or kind < 3:
        return chance.choice(
            ["a", "b", "1", ".", r"\d", r"\D", "[ab]", "[^a]", "[0-9x]", "x", r"\w", r"\s", "(a1*)", r"\."]
        )
    if kind == 3:
        return draw(chance, depth + 1) + draw(chance, depth + 1)
    if kind == 4:
        return f"(?:{draw(chance, depth + 1)}|{draw(chance, depth + 1)})"
    if kind == 5:
        return f"(?:{draw(chance, depth + 1)})" + chance.choice(
            ["*", "+", "?", "{2}", "{1,3}", "{2,}", "*?", "+?", "??"]
        )
    if kind == 6:
        return draw(chance, depth + 1) + draw(chance, depth + 1) + draw(chance, depth + 1)
    return "^" + draw(chance, depth + 1) if kind == 7 else draw(chance, depth + 1) + "$"


@pytest.mark.parametrize("seed", range(8))
def test_it_finds_what_python_finds(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(250):
        text = draw(chance)
        try:
            ours = compile_pattern(text)
        except PatternError:
            continue
        theirs = re.compile(text, re.ASCII)
        for _ in range(6):
            line = "".join(chance.choice("ab1 .xé") for _ in range(chance.randrange(12)))
            found = theirs.search(line)
            assert ours.matches(line) is (found is not None), (text, line)
            if found is not None and ours.groups == 1:
                assert ours.find_group(line) == found[1], (text, line)


@pytest.mark.parametrize(
    ("text", "line", "group"),
    [
        (r"loss[=: ]+([0-9.eE+-]+|nan)", "step 3 loss: 1.25e-3 lr 0.1", "1.25e-3"),
        (r"loss=(nan|\S+)", "loss=nan", "nan"),
        (r"(?i)CUDA ERROR: (\w+)", "12:01 cuda error: OutOfMemory", "outofmemory"),
        (r"Xid \(.*\): (\d+)", "NVRM: Xid (PCI:0000:07:00): 79, pid=12", "79"),
        (r"a(b)?c", "ac", None),
        (r"([0-9]+) tokens", "5 steps, 812 tokens", "812"),
        (r"x([0-9]+)", "x1 x2", "1"),
        (r"é(\d)", "é5", "5"),
        (r"[[:(]loss[=:](\d)", "(loss:5", "5"),
        (r"loss=(.+?),", "loss=0.5, acc=0.9, lr=0.1", "0.5"),
        (r"loss=(.+),", "loss=0.5, acc=0.9, lr=0.1", "0.5, acc=0.9"),
        (r"loss: (\S*?)(?:,|$)", "loss: 0.25,lr: 1,b", "0.25"),
        (r"x(a|ab)(?:c|bcd)?", "xabcd", "a"),
    ],
)
def test_the_group_of_the_leftmost_match(text: str, line: str, group: str | None) -> None:
    assert compile_pattern(text).find_group(line) == group
    assert compile_pattern(text).find_group("nothing of that") is None


@pytest.mark.parametrize("nothing", ["a{0}", "(?:)", "(?:a{0}b{0})", "(?:a{0,0}){1}"])
def test_nothing_that_is_repeated_takes_no_time(nothing: str) -> None:
    """Each repetition would multiply the work of the one before by 64, and adds no instruction that counts."""
    few = f"{nothing}{'{64}' * 2}b"
    assert count_calls(lambda: compile_pattern(few)) < 2000
    most = f"{nothing}{'{64}' * 60}b"
    assert compile_pattern(most).matches("ab")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text", [r"(a+)+$", r"(a|aa)+$", r"(.*a){20}x", r"(a?){50}a{50}b", r"(x+x+)+y", r"^(([a-z])+.)+[A-Z]([a-z])+$"]
)
def test_no_line_takes_long(text: str) -> None:
    """With Python's own engine each of these takes longer than anybody waits."""
    found = compile_pattern(text)
    for line in ("a" * 5000 + "!", "x" * 5000, "ax" * 2500):
        assert found.find_group(line) is None or text != r"(x+x+)+y"
    assert len(found._moves) <= patterns.MOST_MOVES
    assert len(found.steps) <= patterns.MOST_INSTRUCTIONS + 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it has 0 characters: write 1 to 256"),
        ("a" * 257, "it has 257 characters: write 1 to 256"),
        ("a**", "a repetition is repeated: write one of the two"),
        ("(?=a)b", "(? is not supported but for (?: and a (?i) at the start"),
        (r"(a)\1", r"\1 is not supported: use letters, classes and \d, \w, \s"),
        (r"\bword", r"\b is not supported"),
        ("loss=[[:digit:].]+", "[:digit:] is not supported: write its characters, as in [a-z], or \\d, \\w, \\s"),
        ("[^[:space:]]x", "[:space:] is not supported"),
        ("a{100}", "{100} is out of range: repeat at most 64 times"),
        ("a{3,2}", "{3,2} is out of range"),
        ("(a", "a ( is not closed: write \\( for the character"),
        ("a)", "a ) closes nothing: write \\) for the character"),
        ("[a", "a [ is not closed: write \\[ for the character"),
        ("[b-a]", "the range b-a is empty"),
        ("*a", "* repeats nothing: write \\* for the character"),
        ("(" * 17 + "a" + ")" * 17, "groups are nested deeper than 16"),
        ("(?:a{60}){60}", "it is too long: it has more than 256 parts"),
        ("a*", "it matches every line: write what only the lines have that you look for"),
        ("^", "it matches every line"),
        ("a\\", "\\ is not supported"),
    ],
)
def test_what_is_not_understood_says_what_to_write(text: str, said: str) -> None:
    with pytest.raises(PatternError, match=re.escape(said)):
        compile_pattern(text)


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        ("CUDA error|ECC", ("CUDA error", "ECC")),
        (r"\d+: out of memory", (": out of memory",)),
        (r"\d+\.\d+", (".",)),
        (r"\d+", ()),
        ("(?:abc)?d", ("d",)),
        ("(abc)+d*", ("abc",)),
        ("a|\\d", ()),
    ],
)
def test_most_lines_are_left_out_by_a_text_that_they_lack(text: str, needed: tuple[str, ...]) -> None:
    assert compile_pattern(text).needed == needed


@pytest.mark.parametrize(
    ("text", "number"), [("1.5", 1.5), ("1,234.5", 1234.5), ("1e-3", 0.001), ("x", None), (None, None), ("", None)]
)
def test_numbers_of_logs(text: str | None, number: float | None) -> None:
    assert patterns.read_number(text) == number


@pytest.mark.parametrize("text", ["nan", "inf", "-Infinity"])
def test_what_is_not_finite_is_no_number(text: str) -> None:
    found = patterns.read_number(text)
    assert found is not None and found != found  # noqa: PLR0124 - only NaN is not itself
