"""Rows of Parquet files as samples: what they are, in which order, and what is read for them."""

from __future__ import annotations

import itertools
import logging
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader, Subset

from elasticjob import ElasticDistributedSampler, ParquetDataset
from elasticjob.data import parquet
from elasticjob.errors import ConfigurationError

ROWS, GROUP = 1000, 50


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1000 rows in two files below a folder, in groups of 50 rows."""
    path = tmp_path_factory.mktemp("table")
    table = pa.table({"index": range(ROWS), "x": [[float(row), 2.0] for row in range(ROWS)]})
    write(table.slice(0, 600), path / "day=1/part-00000.snappy.parquet")
    write(table.slice(600), path / "day=2/part-00000.snappy.parquet")
    (path / "_SUCCESS").touch()
    return path


def write(table: pa.Table, path: Path, group: int = GROUP) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=group)


class Counted(ParquetDataset):
    """It counts how often each group is read."""

    def _take(self, number: int) -> dict[str, parquet.Column]:
        if number not in self._held:
            counts[number] += 1
        return super()._take(number)


counts: Counter[int] = Counter()


def test_rows_of_a_folder_with_the_columns_of_its_partitions(folder: Path) -> None:
    data = ParquetDataset(folder)
    assert len(data) == ROWS
    assert {name: value.tolist() for name, value in data[601].items()} == {"index": 601, "x": [601, 2], "day": 2}
    assert data[-1]["index"] == ROWS - 1
    for index in (ROWS, -ROWS - 1):
        with pytest.raises(IndexError, match="of 1000"):
            data[index]


@pytest.mark.parametrize(
    ("values", "first"),
    [
        (pa.array([1, 2], pa.int8()), torch.tensor(1, dtype=torch.int8)),
        (pa.array([0.5, 2], pa.float16()), torch.tensor(0.5, dtype=torch.float16)),
        (pa.array([True, False]), torch.tensor(True)),
        (pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2)), torch.tensor([1, 2], dtype=torch.int32)),
        (pa.array([[[1.0], [2.0]], [[3.0], [4.0]]]), torch.tensor([[1.0], [2.0]], dtype=torch.float64)),
        (pa.array([[1, 2, 3], []]), torch.tensor([1, 2, 3])),
        (pa.array([[], []], pa.list_(pa.int64())), torch.tensor([], dtype=torch.int64)),
        (pa.array(["a", None]), "a"),
        (pa.array(["a", "b"]).dictionary_encode(), "a"),
        (pa.array([1, 2]).dictionary_encode(), torch.tensor(1)),
        (pa.array([b"\x00", b""]), b"\x00"),
        (pa.array([{"type": 1, "values": [0.5]}] * 2), {"type": 1, "values": [0.5]}),
    ],
    ids=lambda one: str(one.type) if isinstance(one, pa.Array) else "",
)
def test_values_are_those_of_the_table(tmp_path: Path, values: pa.Array, first: Any) -> None:
    write(pa.table({"value": values}), tmp_path / "a.parquet")
    found = ParquetDataset(tmp_path)[0]["value"]
    if torch.is_tensor(first):
        assert found.dtype == first.dtype
        assert torch.equal(found, first)
    else:
        assert found == first


@pytest.mark.parametrize("values", [[1, None], [[1], None], [[1], [None]]], ids=str)
def test_a_number_that_is_missing_is_named(tmp_path: Path, values: list[Any]) -> None:
    write(pa.table({"rate": values}), tmp_path / "a.parquet")
    with pytest.raises(ConfigurationError, match=r"rate in row group 0 of .*a\.parquet: 1 values are missing"):
        ParquetDataset(tmp_path)[0]


@pytest.mark.parametrize("world", [1, 2, 3, 7])
@pytest.mark.parametrize("virtual", [None, 8])
def test_every_row_is_read_once_and_a_rank_reads_its_part(folder: Path, world: int, virtual: int | None) -> None:
    counts.clear()
    seen: Counter[int] = Counter()
    for rank in range(world):
        data = Counted(folder, columns=["index"], window=5)
        sampler = ElasticDistributedSampler(
            data, global_batch_size=64, rank=rank, world_size=world, virtual_ranks=virtual
        )
        for micro, batch in sampler.steps(DataLoader(data, batch_sampler=sampler)):
            seen.update(batch["index"].tolist() if micro.samples else ())
    assert seen == dict.fromkeys(range(ROWS), 1)
    # Once, and once more for each border: of a rank's part of a window, and of a batch with rows of two windows.
    windows = ROWS // GROUP // 5
    assert counts.total() <= ROWS // GROUP + 2 * windows * world + 5 * windows


def test_the_order_goes_on_at_another_size(folder: Path) -> None:
    data = ParquetDataset(folder)
    made: dict[int, list[list[int]]] = {}
    for world in (1, 2, 3):
        made[world] = []
        for rank in range(world):
            sampler = ElasticDistributedSampler(data, global_batch_size=60, rank=rank, world_size=world)
            sampler.load_state_dict({"epoch": 4, "used": 120, "seed": 0, "length": ROWS})
            made[world] += [[int(data[index]["index"]) for index in batch] for batch in sampler]
    for world in (2, 3):
        passes = len(made[world]) // world
        parts = [made[world][rank * passes] for rank in range(world)]
        assert sorted(itertools.chain(*parts)) == sorted(made[1][0]), "the first batch"


def test_rows_are_shuffled_by_the_seed_and_the_epoch(folder: Path) -> None:
    data = ParquetDataset(folder, window=4)
    sampler = ElasticDistributedSampler(data, global_batch_size=100)
    first = sampler.order()
    assert sorted(first) == list(range(ROWS))
    assert len({row // GROUP for row in first[: 4 * GROUP]}) == 4, "a window"
    assert len({row // GROUP for row in first[:40]}) == 4, "of which all groups are mixed"
    sampler.set_epoch(1)
    assert sampler.order() != first
    assert ElasticDistributedSampler(data, global_batch_size=10, seed=1).order() != first
    assert ElasticDistributedSampler(data, global_batch_size=10, rank=1, world_size=2).order() == first
    assert ElasticDistributedSampler(data, global_batch_size=10, shuffle=False).order() == list(range(ROWS))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_process_of_a_loader_opens_the_files_itself(folder: Path, method: str) -> None:
    data = ParquetDataset(folder, transform=to_index)
    data[0]  # this process has opened them
    sampler = ElasticDistributedSampler(data, global_batch_size=100)
    loader = DataLoader(data, batch_sampler=sampler, num_workers=1, multiprocessing_context=method)
    assert sorted(index for batch in loader for index in batch.tolist()) == list(range(ROWS))


def to_index(row: dict[str, Any]) -> torch.Tensor:
    index: torch.Tensor = row["index"]
    return index


def test_a_table_larger_than_the_memory_that_is_allowed(tmp_path: Path) -> None:
    """256 MB of random numbers, which do not compress, with 64 MB more than the interpreter has after the first row."""
    rows = 1024
    numbers = torch.randn(rows, 1 << 15)
    values = pa.FixedSizeListArray.from_arrays(pa.array(numbers.flatten().numpy()), 1 << 15)
    pq.write_table(pa.table({"x": values}), tmp_path / "a.parquet", row_group_size=16, compression="none")
    del numbers, values
    program = f"""
import resource, torch
from elasticjob import ElasticDistributedSampler, ParquetDataset
data = ParquetDataset({str(tmp_path)!r}, window=4)
total = float(data[0]["x"].sum()) * 0
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for batch in ElasticDistributedSampler(data, global_batch_size=32):
    total += sum(float(one["x"].sum()) for one in data.__getitems__(batch))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(ran.stdout) < 64 << 10, "KiB"


def test_an_order_that_reads_a_group_for_each_row_is_told(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = ParquetDataset(folder, window=1)
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(0)).tolist()
    with caplog.at_level(logging.WARNING, "elasticjob.data.parquet"):
        for index in order[:200]:
            Subset(data, range(ROWS))[index]
    assert [record.message for record in caplog.records if "Give the ParquetDataset itself" in record.message] != []
    assert len(caplog.records) == 1


def test_urls_of_fsspec_and_lists_of_files(folder: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(str(folder), "/table", recursive=True)
    assert len(ParquetDataset("memory://table")) == ROWS
    assert int(ParquetDataset("memory://table/day=2")[0]["index"]) == 600
    files = sorted(str(path) for path in folder.rglob("*.parquet"))
    assert len(ParquetDataset(files)) == ROWS
    assert len(ParquetDataset([f"file://{path}" for path in files])) == ROWS


@pytest.mark.parametrize(
    ("path", "options", "error"),
    [
        ("/nowhere", {}, "/nowhere: no such file or folder"),
        (__file__, {}, "cannot be read as Parquet"),
        ([], {}, "has no rows"),
        ("memory://nothing", {}, "cannot be read as Parquet"),
        ("unknown://a", {}, "cannot be read as Parquet: Protocol not known: unknown"),
        (None, {"columns": ["y", "index", "z"]}, "columns: there is no y, z in index, x, day"),
        (None, {"window": 0}, "window=0"),
    ],
)
def test_what_cannot_be_read_is_named(folder: Path, path: Any, options: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigurationError, match=error):
        ParquetDataset(folder if path is None else path, **options)


def test_a_store_that_does_not_answer_is_no_mistake_of_the_script(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """A job whose script the runtime refuses twice has failed."""

    def fail(*_: object, **__: object) -> list[object]:
        raise OSError("When reading: curl error 28: Timeout was reached\nmore")

    class Fragment:
        path = "a.parquet"
        row_groups = property(fail)

    told = "cannot be read as Parquet: When reading: .* reached$"
    with pytest.raises(OSError, match=told):
        parquet._list_rows(Fragment())
    monkeypatch.setattr("pyarrow.dataset.dataset", fail)
    with pytest.raises(OSError, match=told):
        ParquetDataset(folder)


def test_a_table_without_rows_and_one_that_changes(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    write(pa.table({"x": pa.array([], pa.int64())}), file)
    with pytest.raises(ConfigurationError, match="has no rows"):
        ParquetDataset(tmp_path)
    write(pa.table({"x": range(100)}), file)
    data = ParquetDataset(tmp_path)
    os.truncate(file, 50)
    with pytest.raises(OSError, match=r"row group 0 of .*a\.parquet cannot be read: "):
        data[0]


def test_without_pyarrow_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigurationError, match=r"pip install elasticjob\[parquet\]"):
        ParquetDataset(folder)


@pytest.mark.parametrize(("rows", "window"), [([3], 1), ([1, 5, 2], 2), ([4] * 9, 4), ([1] * 7, 100)])
def test_an_order_has_every_row_once(rows: list[int], window: int) -> None:
    order = parquet.shuffle_groups(rows, window, torch.Generator().manual_seed(1))
    assert sorted(order) == list(range(sum(rows)))
