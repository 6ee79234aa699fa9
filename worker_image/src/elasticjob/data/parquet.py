"""A table in Parquet files, of any size, as a dataset: rows are read by row group, and a few groups are in memory.

A row group is the least that a Parquet file gives. So rows cannot be shuffled over the whole table: each sample would
cost a group. `ParquetDataset` shuffles the groups, and the rows of each *window* of groups among themselves. The order
depends on the seed and the epoch, never on the world. A global batch has rows of all groups of its window, and is read
in ascending order: a rank of a world of `n` then reads about one `n`-th of these groups.
"""

from __future__ import annotations

import bisect
import itertools
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import Dataset

from elasticjob.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

Column = torch.Tensor | list[Any]  # by row

_log = logging.getLogger("elasticjob.data.parquet")
_READERS = 16  # files whose footers are read at the same time
_LOOK = 64  # groups that were read before it is judged how they are used
_SCATTERED = (
    "%d row groups were read for %d of their %d rows: the samples come in an order that is not made for Parquet. Give"
    " the ParquetDataset itself to elasticjob.ElasticDistributedSampler, and select rows and columns before."
)


@dataclass(frozen=True)
class Group:
    """A row group: of which file, which one, and how many rows it has."""

    file: int
    number: int
    rows: int


class ParquetDataset(Dataset[Any]):
    """The rows of Parquet files, each as a dictionary by column.

        dataset = elasticjob.ParquetDataset("s3://bucket/train/", columns=["x", "label"])
        sampler = elasticjob.ElasticDistributedSampler(dataset, global_batch_size=4096)
        loader = DataLoader(dataset, batch_sampler=sampler, num_workers=1)

    `path` is a file, a folder with all below it (as Spark writes one; `key=value` folders are columns), a list of
    files, or a URL of fsspec with its `storage_options`. Files are taken in the order of their names, and must not
    change while a job reads them. Numbers are tensors, lists of them tensors of one dimension more, everything else
    Python's objects. `transform` gets a row, and returns the sample.

    `window` is how many row groups are shuffled together; as many, and two more, are in the memory of each process that
    reads, at most. Needs pyarrow: `pip install elasticjob[parquet]`. Raises ConfigurationError where nothing can be
    read, and for numbers that are missing; OSError where a store does not answer.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        columns: Sequence[str] | None = None,
        window: int = 8,
        transform: Callable[[dict[str, Any]], Any] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if window < 1:
            raise ConfigurationError(f"window={window}: is a number of row groups, at least 1.")
        self._where = [str(one) for one in path] if isinstance(path, (list, tuple)) else str(path)
        self._options = dict(storage_options or {})
        self._columns = None if columns is None else list(columns)
        self._window, self._transform = window, transform
        self._opened: tuple[int, Any, list[Any]] | None = None
        self._held: OrderedDict[int, dict[str, Column]] = OrderedDict()
        self._reads = self._served = self._rows_read = 0
        self.groups = self._find_groups()
        self._ends = list(itertools.accumulate(group.rows for group in self.groups))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Any:
        if not -len(self) <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        index %= len(self)
        number = bisect.bisect_right(self._ends, index)
        row = index - self._ends[number] + self.groups[number].rows
        values = {name: column[row] for name, column in self._take(number).items()}
        self._served += 1
        return values if self._transform is None else self._transform(values)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The samples of a batch."""
        return [self[index] for index in indices]

    def __getstate__(self) -> dict[str, Any]:
        """What another process reads from: it opens the files itself."""
        return {**self.__dict__, "_opened": None, "_held": OrderedDict()}

    def epoch_order(self, generator: torch.Generator) -> list[int]:
        """All row numbers, shuffled as far as it is cheap to read them so."""
        return shuffle_groups([group.rows for group in self.groups], self._window, generator)

    # Reading.

    def _open(self) -> tuple[Any, list[Any]]:
        """The table's schema and its files, as this process has opened them: clients of stores survive no fork."""
        if self._opened is None or self._opened[0] != os.getpid():
            dataset = open_table(self._where, self._options)
            files = sorted(dataset.get_fragments(), key=lambda one: str(one.path))
            self._opened = os.getpid(), dataset.schema, files
            self._held.clear()
        return self._opened[1:]

    def _find_groups(self) -> list[Group]:
        schema, files = self._open()
        unknown = [name for name in self._columns or () if name not in schema.names]
        if unknown:
            raise ConfigurationError(f"columns: there is no {', '.join(unknown)} in {', '.join(schema.names)}.")
        with ThreadPoolExecutor(_READERS, "elasticjob-parquet") as pool:
            found = list(pool.map(_list_rows, files))
        groups = [
            Group(file, number, rows) for file, each in enumerate(found) for number, rows in enumerate(each) if rows
        ]
        if not groups:
            raise ConfigurationError(f"{self._where}: has no rows.")
        return groups

    def _take(self, number: int) -> dict[str, Column]:
        """The columns of a group, by name."""
        schema, files = self._open()
        if number in self._held:
            self._held.move_to_end(number)
            return self._held[number]
        while len(self._held) >= self._window + 2:
            self._held.popitem(last=False)
        group = self.groups[number]
        part = files[group.file].subset(row_group_ids=[group.number])
        where = f"row group {group.number} of {part.path}"
        try:
            table = part.to_table(schema=schema, columns=self._columns)
        except (OSError, ValueError) as error:
            raise OSError(f"{where} cannot be read: {_first_line(error)}") from error
        self._held[number] = {name: decode(table[name], f"{name} in {where}") for name in table.column_names}
        self._judge(group.rows)
        return self._held[number]

    def _judge(self, rows: int) -> None:
        """Tell, once, that groups are read again and again for a few rows."""
        self._reads += 1
        self._rows_read += rows
        if self._reads == _LOOK and self._served < min(8 * _LOOK, self._rows_read / 16):
            _log.warning(_SCATTERED, self._reads, self._served, self._rows_read)


def shuffle_groups(rows: Sequence[int], window: int, generator: torch.Generator) -> list[int]:
    """The row numbers of groups with so many rows: the groups shuffled, and the rows of each `window` of them.

    Pure, but for the generator.
    """
    ends = list(itertools.accumulate(rows))
    shuffled = torch.randperm(len(rows), generator=generator).tolist()
    order: list[int] = []
    for start in range(0, len(shuffled), window):
        spans = [torch.arange(ends[one] - rows[one], ends[one]) for one in shuffled[start : start + window]]
        numbers = torch.cat(spans)
        order += numbers[torch.randperm(len(numbers), generator=generator)].tolist()
    return order


def open_table(where: str | list[str], options: Mapping[str, Any]) -> Any:
    """The `pyarrow.dataset.Dataset` of these files. Raises ConfigurationError, or OSError of a store that is away."""
    try:
        from pyarrow import ArrowException, dataset
    except ImportError as error:
        raise ConfigurationError("ParquetDataset needs pyarrow: pip install elasticjob[parquet]") from error
    filesystem, paths = None, where
    first = where if isinstance(where, str) else where[0] if where else ""
    try:
        if "://" in first:
            import fsspec

            filesystem, path = fsspec.core.url_to_fs(first, **options)
            paths = [fsspec.core.url_to_fs(one, **options)[1] for one in where] if isinstance(where, list) else path
        elif isinstance(where, str) and not Path(where).exists():
            raise ConfigurationError(f"{where}: no such file or folder.")
        return dataset.dataset(paths, format="parquet", partitioning="hive", filesystem=filesystem)
    except (ArrowException, OSError, ValueError, ImportError) as error:
        raise _explain(where, error) from error


def _list_rows(file: Any) -> list[int]:
    try:
        return [group.num_rows for group in file.row_groups]
    except (OSError, ValueError) as error:
        raise _explain(file.path, error) from error


def _explain(where: object, error: Exception) -> Exception:
    """A store that does not answer is no mistake of the script."""
    kind = OSError if isinstance(error, OSError) and not isinstance(error, FileNotFoundError) else ConfigurationError
    return kind(f"{where}: cannot be read as Parquet: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def decode(column: pa.ChunkedArray, where: str) -> Column:
    """The values of a column by row: a tensor, or a list of them where they differ in length, or Python's objects.

    Raises ConfigurationError for a number that is missing: no tensor can say so.
    """
    import pyarrow as pa
    from pyarrow import compute

    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        values: list[Any] = array.to_pylist()
        return values
    if array.null_count:
        raise ConfigurationError(f"{where}: {array.null_count} values are missing: fill them in, or leave it out.")
    if kind is array.type:
        return torch.from_numpy(array.to_numpy(zero_copy_only=False).copy())
    return _cut(decode(array.flatten(), where), compute.list_value_length(array).to_pylist())


def _cut(values: Column, lengths: list[int]) -> Column:
    """The values of all lists of a column, as one tensor if all are equally long."""
    if isinstance(values, torch.Tensor) and len(set(lengths)) == 1:
        return values.reshape(len(lengths), lengths[0], *values.shape[1:])
    ends = list(itertools.accumulate(lengths))
    return [values[end - length : end] for end, length in zip(ends, lengths, strict=True)]
