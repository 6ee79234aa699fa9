"""Lines of JSON from a stream with any content."""

from __future__ import annotations

import asyncio
import itertools
import json
import tracemalloc
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from elasticjob_operator import turn
from elasticjob_operator.kube.reduced_jobs import reduce_line
from elasticjob_operator.rest.json_stream import LARGE_BYTES, PIECE, Lines, Unreadable, decode, outline_event

DEEP = b"[" * 70_000 + b"]" * 70_000
NAMED = b'{"type":"ADDED","object":{"kind":"ConfigMap","metadata":{"name":"big","namespace":"t2","labels":{"name":"x"}}'


async def read(lines: Lines, *chunks: bytes) -> list[Any]:
    return [value for chunk in chunks async for value in lines.feed(chunk)]


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
async def test_what_is_told(stream: bytes, told: list[object], size: int) -> None:
    assert await read(Lines(119), *(stream[i : i + size] for i in range(0, len(stream), size))) == told


async def test_one_that_is_too_deep() -> None:
    assert await read(Lines(2**20), DEEP + b"\n1\n") == [Unreadable("", "no JSON that can be read: RecursionError"), 1]


LONG = "x" * LARGE_BYTES
ITEMS = [{"metadata": {"name": f"p{i}"}, "data": [i, None, 1.5, {"items": [i]}]} for i in range(3000)]


@pytest.mark.parametrize(
    "value",
    [
        pytest.param({}, id="empty"),
        pytest.param({"items": []}, id="short"),
        pytest.param([LONG], id="no object"),
        pytest.param({"kind": "PodList", "metadata": {"continue": LONG}, "items": []}, id="no items"),
        pytest.param({"items": None, "x": LONG}, id="items are null"),
        pytest.param({"x": LONG, "items": {"a": [1]}}, id="items are an object"),
        pytest.param({"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": ITEMS}, id="of a typed kind"),
        pytest.param({"apiVersion": "v1", "items": ITEMS, "kind": "X", "metadata": {"a": "]}"}}, id="of a custom kind"),
    ],
)
@pytest.mark.parametrize("indent", [None, 1])
async def test_a_reply(value: Any, indent: int | None) -> None:
    assert await decode(json.dumps(value, indent=indent).encode() + b"\n") == value


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        pytest.param('{"metadata": 1, "items": [2, 3]}', ["head 1", "take 2", "take 3"], id="short"),
        pytest.param('{"items": [2, 3], "metadata": 1}', ["head 1", "take 2", "take 3"], id="short, of a custom kind"),
        pytest.param('{"metadata": 1, "items": [2, 3], "x": L}', ["head 1", "take 2", "take 3"], id="long"),
        pytest.param('{"items": [2, 3], "metadata": 1, "x": L}', ["take 2", "take 3", "head 1"], id="of a custom kind"),
        pytest.param('{"items": {"a": 2}, "x": L}', [], id="no list"),
        pytest.param("[2, 3]", [], id="no object"),
    ],
)
async def test_items_are_taken_as_they_come(text: str, calls: list[str]) -> None:
    made: list[str] = []

    def take(item: int) -> str:
        made.append(f"take {item}")
        return f"taken {item}"

    async def head(metadata: int) -> None:
        made.append(f"head {metadata}")

    value = await decode(text.replace("L", json.dumps(LONG)).encode(), take, head)
    assert made == calls
    if "take 2" in calls:
        assert value["items"] == ["taken 2", "taken 3"]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('{"items":[' + json.dumps(LONG), id="cut off"),
        pytest.param('{"items":[' + json.dumps(LONG) + "]", id="no end"),
        pytest.param('{"items" [' + json.dumps(LONG) + "]}", id="no colon"),
        pytest.param('{"a":' + json.dumps(LONG) + "} {}", id="two values"),
        pytest.param('{"a":' + json.dumps(LONG) + ",,}", id="no name"),
        pytest.param('{"items":[1 ' + json.dumps(LONG) + "]}", id="no comma between items"),
        pytest.param('{"items":[1,' + json.dumps(LONG) + ",]}", id="a comma too many"),
        pytest.param('{"a":1 "b":' + json.dumps(LONG) + "}", id="no comma between names"),
        pytest.param('{"items":["' + "x" * LARGE_BYTES + '", ' + DEEP.decode() + "]}", id="too deep"),
    ],
)
async def test_a_reply_that_cannot_be_read(text: str) -> None:
    with pytest.raises((ValueError, RecursionError)):
        await decode(text.encode())


async def test_others_have_the_loop_while_a_long_list_is_decoded() -> None:
    data = json.dumps({"items": ITEMS * 30}).encode()
    decoding, turns = asyncio.create_task(decode(data)), 0
    while not decoding.done():
        await asyncio.sleep(0)
        turns += 1
    assert len(decoding.result()["items"]) == 90_000
    assert turns > 5


SHORT_TEXTS = '"",' * 500_000  # to tell which commas are those of the list takes as long as to parse them
A_LONG_TEXT = '"' + "[," * 700_000 + '",'
MANY_BRACKETS = "[]," * 300_000
A_LONG_WORK = [pytest.param(text, id=text[:4]) for text in (SHORT_TEXTS, A_LONG_TEXT, MANY_BRACKETS)]


TICKS = itertools.count()


async def count_turns(work: Coroutine[Any, Any, Any], monkeypatch: pytest.MonkeyPatch) -> int:
    """Turns of the event loop until the work is done, where a look at the clock takes a millisecond."""
    monkeypatch.setattr(turn, "time", SimpleNamespace(monotonic=lambda: next(TICKS) / 1000))
    task, turns = asyncio.create_task(work), 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    await task
    return turns


@pytest.mark.parametrize("text", A_LONG_WORK)
async def test_one_of_any_content_is_looked_through_in_pieces(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not parsed, and to find that out may not take long at a stretch either."""
    monkeypatch.setattr(turn, "SECONDS", 0.0005)
    item = '{"metadata":{"name":"x"},"spec":[' + text + "0]}"
    pieces = len(text) // PIECE
    in_a_list = decode(('{"items":[' + item + "]}").encode(), reduce=lambda text: None)
    assert await count_turns(in_a_list, monkeypatch) > pieces
    if text != A_LONG_TEXT:  # which is parsed at once, in a few milliseconds
        line = ('{"type":"ADDED","object":' + item + "}\n").encode()
        assert await count_turns(read(Lines(2**24), line), monkeypatch) > 4


async def test_those_who_are_ready_at_once_share_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten lists of ten tenants that arrive together occupied the event loop for ten times as long as one."""
    lists, items = 10, 1000
    data = json.dumps({"items": [{"metadata": {"name": f"p{number}"}} for number in range(items)], "x": LONG}).encode()
    together = asyncio.gather(*(decode(data) for _ in range(lists)))

    async def work() -> None:
        await together

    assert await count_turns(work(), monkeypatch) >= lists * items / (1000 * turn.SECONDS + lists + 1)


MANY = b",".join(b'"%d":0' % number for number in range(100_000))
FULL_OF_COMMAS = json.dumps({"metadata": {"name": "x"}, "args": ['[1, 2, {"a": "\\""}], ' * 50_000]}).encode()
MEMBER = {"pod": "job-worker-1234", "rank": 1, "uid": "u" * 36, "address": "10.0.0.1", "nproc": 8, "x": 1}
LARGEST_JOB = json.dumps({"status": {"members": [MEMBER] * 5_000}, "spec": [{"name": "x"}] * 10_000}).encode()


async def test_one_of_many_values_is_not_parsed() -> None:
    """A megabyte of short keys would occupy the event loop for longer than anything else that a tenant can write."""
    line = NAMED + b',"data":{' + MANY + b"}}}\n"
    assert await read(Lines(2**21), line + b"1\n") == [Unreadable("t2/big", "more than 75000 values"), 1]


async def test_numbers_with_a_fraction_count_more() -> None:
    """One of seventeen digits takes three times as long as a short key. Those within texts are none."""
    numbers = b"1.2345678901234567e-300," * 60_000 + b"0"
    line = NAMED + b',"data":[' + numbers + b"]}}\n"
    assert await read(Lines(2**21), line + b"1\n") == [Unreadable("t2/big", "more than 75000 values"), 1]
    text = NAMED + b',"data":["' + numbers + b'"]}}\n'
    assert await read(Lines(2**21), text) == [json.loads(text)]


async def test_an_object_whose_labels_are_too_many_is_named_by_what_comes_after_them() -> None:
    """The API server sorts the metadata of a job. Labels that look like its name are not taken for it."""
    labels = {f"l{number}": "" for number in range(80_000)} | {"name": "liar", "namespace": "other"}
    metadata = {"labels": labels, "name": "big", "namespace": "t2", "resourceVersion": "7", "uid": "u"}
    event = {"type": "ADDED", "object": {"kind": "ElasticJob", "metadata": metadata, "spec": {"replicas": 1}}}
    line = json.dumps(event, separators=(",", ":")).encode() + b"\n"
    assert await read(Lines(2**21), line + b"1\n") == [Unreadable("t2/big", "more than 75000 values"), 1]


@pytest.mark.parametrize("line", [FULL_OF_COMMAS, LARGEST_JOB], ids=["a text is one value", "the largest job"])
async def test_one_of_many_bytes_is_parsed(line: bytes) -> None:
    assert await read(Lines(2**22), line + b"\n") == [json.loads(line)]


async def test_one_of_many_values_makes_its_page_unreadable() -> None:
    """The list is then read in smaller pieces, until it is alone."""
    with pytest.raises(ValueError, match="more than 75000 values"):
        await decode(b'{"items":[{"data":{' + MANY + b"}}]}")
    assert len((await decode(b'{"items":[' + LARGEST_JOB + b"," + FULL_OF_COMMAS + b"]}"))["items"]) == 2


@pytest.mark.parametrize("fat", [b'{"data":{' + MANY + b",no JSON}}", b'{"a":[' + b"[[]]," * 80_000 + b"no JSON]}"])
async def test_one_of_many_values_is_not_decoded_in_a_list_either(fat: bytes) -> None:
    """Nobody notices that it is no JSON: to decode it would take a tenth of a second at a stretch."""
    small = b'{"metadata":{"name":"]}"}}'
    with pytest.raises(ValueError, match="more than 75000 values"):
        await decode(b'{"items":[' + small + b"," + fat + b"]}")
    read = await decode(b'{"items":[' + small + b", " + fat + b" ," + small + b"]}", reduce=len)
    assert read["items"] == [json.loads(small), len(fat), json.loads(small)]


@pytest.mark.parametrize("member", [b'"spec"', b'"metadata"'])
async def test_one_of_many_values_is_not_decoded_alone_either(member: bytes) -> None:
    """What a write is answered with, or a read of one object, is as large as its author made it."""
    fat = b'{"kind":"X",' + member + b':{"data":{' + MANY + b",no JSON}}}"
    with pytest.raises(ValueError, match="more than 75000 values"):
        await decode(fat)
    assert await decode(fat, reduce=len) == len(fat)
    for large in (LARGEST_JOB, FULL_OF_COMMAS):
        assert await decode(large) == json.loads(large)


async def test_one_character_does_not_make_a_list_four_times_as_large() -> None:
    """Five jobs that a tenant wrote for that would take most of the operator's memory, each time that it starts."""
    items = [{"metadata": {"name": f"p{number}"}, "text": "\U0001f600" + "x" * 250_000} for number in range(20)]
    data = json.dumps({"items": items, "x": "ä"}, ensure_ascii=False).encode()
    tracemalloc.start()
    try:
        read = await decode(data, take=lambda item: len(item["text"]))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert read == {"items": [250_001] * 20, "x": "ä"}
    assert most < 2.5 * len(data)


@pytest.mark.parametrize("text", ["ä€\U0001f600", "ä" * LARGE_BYTES, '\\u00e4"ä' * 9000])
async def test_what_is_no_ascii_is_read(text: str) -> None:
    value = {
        "kind": text,
        "items": [text, {text: [text]}, 1, {"a": [{"b": text}, text]}],
        "spec": {"ä": text},
        "x": LONG,
    }
    for indent in (None, 1):
        assert await decode(json.dumps(value, ensure_ascii=False, indent=indent).encode()) == value


async def test_what_is_no_utf8_cannot_be_read() -> None:
    with pytest.raises(ValueError):
        await decode(b'{"x":"' + LONG.encode() + b'","items":[{"a":"\xff"}]}')


FULL = {f"l{number}": "" for number in range(80_000)} | {"uid": "liar", "name": "liar", "namespace": "other"}
IDENTITY = {"name": "big", "namespace": "t2", "uid": "0e1f"}
OF_A_POD = {"metadata": {**IDENTITY, "resourceVersion": "7", "labels": FULL}, "spec": {"nodeName": "n"}}
OF_A_JOB = {
    "metadata": {"labels": FULL, "name": "big", "namespace": "t2", "resourceVersion": "7", "uid": "0e1f"},
    "spec": {"x": {"uid": "liar"}},
}


@pytest.mark.parametrize(
    ("thing", "reduce", "is_known"),
    [
        pytest.param(OF_A_POD, lambda line: None, False, id="a pod"),
        pytest.param(OF_A_JOB, lambda line: None, False, id="a job"),
        pytest.param(OF_A_POD, reduce_line, False, id="a pod, as kopf reads jobs"),
        pytest.param(OF_A_JOB, reduce_line, True, id="a job, as kopf reads it"),
        pytest.param(OF_A_POD, outline_event, True, id="a pod, as we read it"),
        pytest.param(OF_A_JOB, outline_event, False, id="a job, as we read pods"),
    ],
)
async def test_the_deletion_of_one_that_cannot_be_read_is_told(thing: Any, reduce: Any, is_known: bool) -> None:
    """Otherwise a tenant fills the memory with jobs that are gone, and holds devices with pods that are."""

    async def find(kind: str) -> list[Any]:
        line = json.dumps({"type": kind, "object": thing}, separators=(",", ":")).encode() + b"\n"
        found = await read(Lines(2**22, reduce), line)
        return [one if isinstance(one, Unreadable) else (one["type"], one["object"]["metadata"]) for one in found]

    identity = IDENTITY | ({"resourceVersion": "7"} if is_known else {})
    assert await find("DELETED") == [("DELETED", identity)]
    unreadable = Unreadable("t2/big", "more than 75000 values")
    assert await find("MODIFIED") == [("MODIFIED", identity) if is_known else unreadable]


async def test_the_deletion_of_one_of_any_size_is_told() -> None:
    line = json.dumps({"type": "DELETED", "object": OF_A_POD}, separators=(",", ":")).encode() + b"\n"
    assert await read(Lines(10_000), line) == [{"type": "DELETED", "object": {"metadata": IDENTITY}}]


@pytest.mark.parametrize("text", ["x", "ä"], ids=["ascii", "not ascii"])
async def test_what_takes_a_large_item_has_a_turn_of_its_own(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To decode a job of a megabyte takes as long as to read it."""
    monkeypatch.setattr(turn, "SECONDS", 0.0)
    shared, decoded, raw_decode = [], 0, json.JSONDecoder.raw_decode

    def end_turn() -> None:
        nonlocal decoded
        decoded = 0

    def note(decoder: json.JSONDecoder, s: str, idx: int = 0) -> Any:
        nonlocal decoded
        value, end = raw_decode(decoder, s, idx)
        if end - idx > LARGE_BYTES:
            decoded += 1
            asyncio.get_running_loop().call_soon(end_turn)
        return value, end

    monkeypatch.setattr(json.JSONDecoder, "raw_decode", note)
    items = [{"metadata": {"annotations": {"x": text * (LARGE_BYTES + 1)}}}] * 3
    found = await decode(json.dumps({"items": items}, ensure_ascii=False).encode(), lambda _: shared.append(decoded))
    assert found == {"items": [None] * 3}
    assert shared == [0, 0, 0]
    shared.append((await decode(json.dumps(items[0], ensure_ascii=False).encode()), decoded)[1])
    assert shared == [0, 0, 0, 0]


async def test_what_takes_a_large_line_has_a_turn_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for an event of a watch: a pod has a megabyte, too."""
    monkeypatch.setattr(turn, "SECONDS", 0.0)
    shared, decoded, loads = [], 0, json.loads

    def end_turn() -> None:
        nonlocal decoded
        decoded = 0

    def note(data: bytes) -> Any:
        nonlocal decoded
        decoded += len(data) > LARGE_BYTES
        asyncio.get_running_loop().call_soon(end_turn)
        return loads(data)

    line = json.dumps({"object": {"x": "x" * (LARGE_BYTES + 1)}}).encode() + b"\n"
    monkeypatch.setattr(json, "loads", note)
    async for _ in Lines(10 * LARGE_BYTES).feed(line * 3):
        shared.append(decoded)
    assert shared == [0, 0, 0]
