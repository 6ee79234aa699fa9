"""Names, manifests and who sends what; what is kept and what goes."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from elasticjob.archive import layout
from elasticjob.archive.garbage import Doomed, Stock, parse_doomed
from elasticjob.archive.layout import ALONE, ManifestError, Object, Save
from elasticjob.archive.storage import Storage
from elasticjob.archive.writing import Leader
from elasticjob.peers.records import CHUNK_BYTES, File, Record

A, B, C, D = ("a" * 64, "b" * 64, "c" * 64, "d" * 64)


@pytest.mark.parametrize(
    ("missing", "holders", "expected"),
    [
        pytest.param({}, {A: [0]}, {}, id="nothing is missing"),
        pytest.param({A: 5, B: 5}, {A: [0], B: [0]}, {0: {A: 5, B: 5}}, id="one pod has all"),
        pytest.param({A: 5, B: 5}, {A: [0, 1], B: [0, 1]}, {0: {A: 5}, 1: {B: 5}}, id="two pods have all"),
        pytest.param(
            {A: 1, B: 1, C: 9}, {A: [0, 1], B: [0, 1], C: [0]}, {0: {C: 9}, 1: {A: 1, B: 1}}, id="large ones first"
        ),
        pytest.param({A: 1, B: 1}, {A: [3]}, {3: {A: 1}}, id="nobody has one of them"),
    ],
)
def test_each_chunk_is_sent_by_one_who_has_it(
    missing: Mapping[str, int], holders: Mapping[str, list[int]], expected: Mapping[int, Mapping[str, int]]
) -> None:
    assert layout.assign(missing, holders) == expected


def test_small_chunks_are_packed_and_large_ones_are_not() -> None:
    found = layout.pack({A: 10, B: CHUNK_BYTES, C: 20}, (3, 1))
    assert found == [Object((3, 1), ((B, CHUNK_BYTES),)), Object((3, 1), ((A, 10), (C, 20)))]
    many = layout.pack({f"{number:064x}": ALONE - 1 for number in range(100)}, (1, 0))
    assert len(many) == 13
    assert max(one.size for one in many) <= layout.PACK
    assert found[0].name == f"0000000003-000001-{B}"
    assert layout.parse_name(found[1].name) == ((3, 1), found[1].content)


def test_an_object_that_is_larger_than_any_pack_is_refused() -> None:
    """Whoever takes a save out of an archive reads packs as a whole."""
    chunks = [[f"{number:064x}", CHUNK_BYTES] for number in range(3)]
    assert layout.parse_object([[1, 0], chunks[:2]]).size == layout.PACK
    with pytest.raises(ManifestError, match="larger than a pack"):
        layout.parse_object([[1, 0], chunks])


def test_a_pod_of_a_world_reads_its_share() -> None:
    objects = [Object((1, 0), ((f"{number:064x}", 5),)) for number in range(10)]
    shares = [list(layout.share_of(objects, rank, 3)) for rank in range(3)]
    assert sorted(one.name for share in shares for one in share) == sorted(one.name for one in objects)
    assert sorted(map(len, shares)) == [3, 3, 4]
    owners = layout.find_owners(reversed(objects), 3)
    assert owners == {digest: rank for rank in range(3) for one in shares[rank] for digest, _ in one.chunks}


def make(number: int, *objects: Object, files: Mapping[str, File] | None = None) -> Save:
    chunks = [digest for one in objects for digest, _ in one.chunks]
    found = files or {f"{digest[0]}.pt": File(5, 0o600, (digest,)) for digest in chunks}
    return Save("uid", Record(2, number, found), 7, "now", objects)


ONE, TWO, THREE = (Object((2, 0), ((digest, 5),)) for digest in (A, B, C))


def name(save: Save) -> str:
    return layout.name_save(save.order, save.dump())


def test_a_manifest_comes_back() -> None:
    save = make(1, ONE, TWO)
    assert layout.parse_save(name(save), save.dump()) == save
    assert save.total == 10


def _change(save: Save, **changes: object) -> tuple[str, bytes]:
    said = json.loads(gzip.decompress(save.dump())) | changes
    data = gzip.compress(json.dumps(said).encode())
    return layout.name_save(save.order, data), data


@pytest.mark.parametrize(
    ("named", "data"),
    [
        pytest.param(name(make(1, ONE)), make(1, ONE).dump()[:-1], id="cut off"),
        pytest.param(name(make(1, ONE)), b"", id="empty"),
        pytest.param(name(make(2, ONE)), make(1, ONE).dump(), id="another one"),
        pytest.param("0000000002-0000000001-x", make(1, ONE).dump(), id="no name"),
        pytest.param(*_change(make(1, ONE), version=2), id="of a newer version"),
        pytest.param(*_change(make(1, ONE), objects=[]), id="chunks without a place"),
        pytest.param(*_change(make(1, ONE), objects=[[[1, 0], [["../../etc", 5]]]]), id="no digest"),
        pytest.param(*_change(make(1, ONE), objects=[[[1, 0], [[A, 1 << 40]]]]), id="too large"),
        pytest.param(*_change(make(1, ONE), record={"generation": 9, "number": 1, "files": {}}), id="another record"),
        pytest.param(
            *_change(make(1, ONE), record={"generation": 2, "number": 1, "files": {"../x": [0, 0, [], "", 0]}}),
            id="a path that escapes",
        ),
        pytest.param(*_change(make(1, ONE), step={}, time=None, job=3, objects=None), id="nonsense"),
        pytest.param(*_change(make(1, ONE), objects=[[[1, 0], [[A, math.inf]]]]), id="a size that is infinite"),
        pytest.param(*_change(make(1, ONE), objects=[[[math.inf, 0], [[A, 5]]]]), id="a writer that is infinite"),
        pytest.param(*_change(make(1, ONE), objects=[[[1, 0], [[A, 5.5]]]]), id="a size that is no count"),
        pytest.param(*_change(make(1, ONE), step=10**30), id="a step that no message has"),
        pytest.param(*_change(make(1, ONE), step=-1), id="a step before the first"),
        pytest.param(*_change(make(1, ONE), time="x" * 300), id="a time that no message has"),
        pytest.param(*_change(make(1, ONE), version=math.inf), id="a version that is infinite"),
        pytest.param(
            *_change(make(1, ONE), record={"generation": 2, "number": 1, "files": {"\ud800": [0, 0, [], "", 0]}}),
            id="a path that no file has",
        ),
    ],
)
def test_what_is_no_whole_manifest_is_refused(named: str, data: bytes) -> None:
    with pytest.raises(ManifestError):
        layout.parse_save(named, data)


def stock(*saves: Save, lost: tuple[Object, ...] = (), unlisted: tuple[Save, ...] = ()) -> Stock:
    found = {name(save): save for save in (*saves, *unlisted)}
    objects = [one for save in found.values() for one in save.objects if one not in lost]
    return Stock(found, frozenset(map(name, saves)), frozenset(), {one.name: one.size for one in objects})


FIRST, SECOND, THIRD = make(1, ONE), make(2, ONE, TWO), make(3, THREE)
AGAIN = sorted([THIRD, replace(THIRD, time="later")], key=name, reverse=True)


@pytest.mark.parametrize(
    ("known", "keep", "kept"),
    [
        pytest.param(stock(FIRST, SECOND, THIRD), 1, [THIRD], id="the newest"),
        pytest.param(stock(FIRST, SECOND, THIRD), 2, [SECOND, THIRD], id="the newest two"),
        pytest.param(stock(FIRST), 3, [FIRST], id="fewer"),
        pytest.param(stock(FIRST, SECOND, THIRD, lost=(THREE,)), 1, [SECOND, THIRD], id="the newest is not whole"),
        pytest.param(stock(FIRST, unlisted=(SECOND,)), 1, [FIRST, SECOND], id="the newest is not shown"),
        pytest.param(stock(FIRST, SECOND, *AGAIN), 1, [AGAIN[0]], id="the newest was made twice"),
        pytest.param(stock(FIRST, SECOND, *AGAIN), 2, [AGAIN[0], SECOND], id="one that was made twice counts once"),
        pytest.param(stock(FIRST, *AGAIN), 3, [AGAIN[0], FIRST], id="also where there are fewer"),
    ],
)
def test_the_newest_whole_saves_are_kept(known: Stock, keep: int, kept: list[Save]) -> None:
    assert known.find_kept(keep) == frozenset(map(name, kept))


def test_what_goes_is_what_only_older_saves_name() -> None:
    known = stock(FIRST, SECOND, THIRD)
    assert known.find_doomed(2, 2, Doomed()) == Doomed(frozenset({name(FIRST)}), frozenset())
    assert known.find_doomed(1, 2, Doomed()) == Doomed(
        frozenset({name(FIRST), name(SECOND)}), frozenset({ONE.name, TWO.name})
    )
    old, new = Object((1, 0), ((D, 5),)), Object((2, 0), ((D, 5),))
    left = Stock(known.saves, known.listed, frozenset(), {**known.sizes, old.name: 5, new.name: 5})
    assert left.find_doomed(3, 2, Doomed()).objects == {old.name}, "what is being sent now stays"
    assert Stock({**known.saves}, known.listed, frozenset({"x"}), known.sizes).find_doomed(1, 2, Doomed()) == Doomed()


def test_only_names_of_the_archive_are_ever_deleted() -> None:
    said = {"saves": ["../x", "0000000002-0000000001-" + A], "objects": ["x/y", "notes.txt", ONE.name]}
    found = parse_doomed(json.dumps(said).encode())
    assert found == Doomed(frozenset({"0000000002-0000000001-" + A}), frozenset({ONE.name}))
    assert parse_doomed(found.dump()) == found


def test_a_lead_of_a_strange_name_is_none(tmp_path: Path) -> None:
    storage = Storage(f"file://{tmp_path}")
    for strange in ("²", "x", "00001"):
        storage.put(f"{layout.LEADS}/{strange}", b"")
    Leader(storage, "uid", 1, 3, lambda: "now").begin()
