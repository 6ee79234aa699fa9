"""Lines of JSON out of a stream, whatever is in it."""

from __future__ import annotations

import json

import pytest

from elasticjob_operator.lines import Lines, Unreadable

DEEP = b"[" * 200_000 + b"]" * 200_000
NAMED = b'{"type":"ADDED","object":{"kind":"ConfigMap","metadata":{"name":"big","namespace":"t2","labels":{"name":"x"}}'


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
@pytest.mark.parametrize(
    ("stream", "told"),
    [
        pytest.param(b'{"a":1}\n{"b":2}\n', [{"a": 1}, {"b": 2}], id="two"),
        pytest.param(b'\n\n{"a":1}\n\n', [{"a": 1}], id="empty ones are none"),
        pytest.param(b'{"a":1}\n{"b":', [{"a": 1}], id="no end, no line"),
        pytest.param(b"<html>\n1\n", [Unreadable("", "no JSON that can be read: JSONDecodeError"), 1], id="no JSON"),
        pytest.param(b'"\xff"\n1\n', [Unreadable("", "no JSON that can be read: UnicodeDecodeError"), 1], id="no text"),
        pytest.param(b"9" * 120 + b"\n1\n", [Unreadable("", "120 bytes, which is more than 119"), 1], id="too long"),
        pytest.param(b"9" * 119 + b"\n", [json.loads("9" * 119)], id="just not too long"),
        pytest.param(
            NAMED + b',"x":"' + b"<" * 200 + b'"}}\n1\n',
            [Unreadable("t2/big", f"{len(NAMED) + 209} bytes, which is more than 119"), 1],
            id="too long, with a name",
        ),
    ],
)
def test_what_is_told(stream: bytes, told: list[object], size: int) -> None:
    lines = Lines(119)
    found = [v for i in range(0, len(stream), size) for v in lines.feed(stream[i : i + size])]
    assert found == told


def test_one_that_is_too_deep() -> None:
    assert list(Lines(2**20).feed(DEEP + b"\n1\n")) == [Unreadable("", "no JSON that can be read: RecursionError"), 1]
