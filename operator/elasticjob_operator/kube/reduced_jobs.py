"""What is read of a job of too many values: its metadata, or what identifies it. Pure.

Its spec becomes one that is refused for the same reason, and costs nothing.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from elasticjob_operator import numerals
from elasticjob_operator.api import bounds
from elasticjob_operator.rest.json_stream import HEAD_BYTES, find_name, has_too_many_values

_METADATA: Final = '"metadata":'
_SPEC: Final = ',"spec":{'  # an annotation or a label of this name is no object
_END: Final = '},"spec":{'
_VERSION: Final = re.compile(
    r'"resourceVersion":"([0-9]{1,20})",(?:"selfLink":"[^"]*",)?"uid":"([0-9A-Za-z-]{1,64})"\Z'
)
_GENERATION: Final = re.compile(r'[{,]"generation":([0-9]{1,18}),')
_TYPES: Final = ("ADDED", "MODIFIED", "DELETED")


def reduce_job(job: dict[str, Any]) -> dict[str, Any]:
    """The job with a spec that has too many values, too, and costs nothing."""
    kept: dict[str, Any] = {name: job[name] for name in ("apiVersion", "kind", "metadata") if name in job}
    return {**kept, "spec": {"template": [None] * (bounds.MOST_VALUES + 1)}}


def reduce_item(text: str) -> dict[str, Any]:
    """The same for an item of a list. Raises ValueError."""
    metadata = _read_metadata(text)
    return reduce_job({"metadata": metadata} if metadata is not None else json.loads(text))


def reduce_line(line: str) -> bytes | None:
    """The same for an event of a watch; None if its metadata is not where it should be."""
    kind = next((one for one in _TYPES if line.startswith(f'{{"type":"{one}"')), None)
    metadata = _read_metadata(line)
    if kind is None or metadata is None:
        return None
    return json.dumps({"type": kind, "object": reduce_job({"metadata": metadata})}).encode()


def _read_metadata(text: str) -> Any:
    begin = text.find(_METADATA, 0, HEAD_BYTES) + len(_METADATA)
    if begin < len(_METADATA):
        return None
    if has_too_many_values(text[begin : text.find(_SPEC, begin)]):
        return _identify(text)
    try:
        metadata, _ = json.JSONDecoder().raw_decode(text, begin)
    except (ValueError, RecursionError):
        return None
    return metadata


def _identify(text: str) -> dict[str, Any] | None:
    """What identifies a job and its version, from the ends of its metadata, whose members are sorted."""
    end = text.find(_END)
    namespace, _, name = find_name(text.encode()).rpartition("/")
    last = _VERSION.search(text, max(0, end - HEAD_BYTES), max(0, end))
    if last is None or not name:
        return None
    found: dict[str, Any] = {"name": name, "namespace": namespace, "resourceVersion": last[1], "uid": last[2]}
    generation = _GENERATION.search(text, 0, end)  # a label's would be a text
    return found | ({"generation": numerals.read_count(generation[1])} if generation else {})
