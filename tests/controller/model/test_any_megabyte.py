"""A text of a megabyte where a number, a time or an error belongs: one answer, at once, and no memory."""

from __future__ import annotations

import contextlib
import inspect
import time
import tracemalloc
from collections.abc import Callable
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticjob_operator import numerals, quantity, times
from elasticjob_operator.api import podtemplate
from elasticjob_operator.model import served
from elasticjob_operator.pool import capacity
from elasticjob_operator.rest import errors
from examples import tries

LENGTH: Final = 1_000_000


def _resolve(text: str) -> object:
    amounts = {"cpu": text, "nvidia.com/gpu": text}
    return podtemplate.resolve_nproc(text, {"spec": {"containers": [{"name": "w", "resources": {"limits": amounts}}]}})


PARSERS: Final[dict[str, Callable[[str], object]]] = {
    "numerals.read_count": numerals.read_count,
    "numerals.read_decimal": numerals.read_decimal,
    "numerals.read_real": numerals.read_real,
    "numerals.shorten": numerals.shorten,
    "quantity.parse": quantity.parse,
    "quantity.add_pod_requests": lambda text: quantity.add_pod_requests(
        {"containers": [{"name": "w", "resources": {"requests": {"cpu": text}}}]}
    ),
    "times.parse_time": times.parse_time,
    "capacity.count_units": lambda text: capacity.count_units("cpu", text),
    "podtemplate.resolve_nproc": _resolve,
    "served.read_version": lambda text: served.read_version({"major": text, "minor": text}),
    "errors.read_wait": errors.read_wait,
    "errors.decode_watch_error": lambda text: errors.decode_watch_error({"message": text, "reason": text}),
}
TEXTS: Final = st.one_of(
    st.sampled_from(
        ["1", "9", "0", ".", " ", "\n", "[", "{", '"', "1e9", "1_", "٣", "-", "+", "1Ki", "\x1b[", "Z", "T:"]
    ),
    st.text(min_size=1, max_size=30),
).map(lambda part: (part * (LENGTH // len(part) + 1))[:LENGTH])
ENDS: Final = st.sampled_from(["", "1", "Ki", "e9", "Z", "]", "}"])


@pytest.mark.parametrize("name", PARSERS)
@tries(few=10, many=100)
@given(text=st.builds(lambda begin, middle, end: begin + middle + end, ENDS, TEXTS, ENDS))
def test_a_megabyte_is_a_value_or_one_error(name: str, text: str) -> None:
    parse = PARSERS[name]
    tracemalloc.start()
    try:
        parse(text)
    except ValueError as error:
        assert len(str(error)) < 512
    finally:
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert most < 1 << 20


@pytest.mark.parametrize("name", PARSERS)
def test_a_longer_text_takes_no_more_time(name: str) -> None:
    """The least of five tries: others may interrupt this process. A millisecond is a hundred times what it takes."""
    parse = PARSERS[name]
    for part in ("1", ".", "1e", "[", "٣"):
        text, took = part * (LENGTH // len(part)), []
        for _ in range(5):
            begin = time.thread_time()
            with contextlib.suppress(ValueError):
                parse(text)
            took.append(time.thread_time() - begin)
        assert min(took) < 0.001, part


def test_no_parser_of_these_modules_is_left_out() -> None:
    for module in (numerals, quantity, times):
        for name, found in inspect.getmembers(module, inspect.isfunction):
            if found.__module__ == module.__name__ and name.startswith(("read", "parse", "shorten", "add")):
                assert f"{module.__name__.rpartition('.')[2]}.{name}" in PARSERS
