"""Messages between ranks: plain data as bounded JSON, and nothing that executes code."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from elasticjob.collectives import messages, plaindata
from elasticjob.collectives.skeletons import Slot
from elasticjob.errors import ConfigurationError


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -(2**70),
        0.1,
        float("inf"),
        "\u00fc\n",
        b"\x00\xff",
        1 + 2j,
        [1, (2, [3]), {}],
        {1: "a", "1": "b", (2, 3): None},
        torch.Size([2, 3]),
        torch.bfloat16,
        Slot(3, (2, 0), torch.float16, "cuda"),
        {"milestones": {30: 1}, "rate": [0.1, None]},
    ],
    ids=repr,
)
def test_plain_data_come_back_as_they_were(value: Any) -> None:
    back = plaindata.decode(plaindata.encode(value))
    assert back == value
    assert type(back) is type(value)


def test_numbers_of_numpy_come_back_too() -> None:
    state: dict[str, Any] = {"keys": np.arange(6, dtype=np.uint32).reshape(2, 3), "count": np.int64(7)}
    back = plaindata.decode(plaindata.encode(state))
    assert np.array_equal(back["keys"], state["keys"]) and back["keys"].dtype == np.uint32
    assert back["count"] == 7 and isinstance(back["count"], np.int64)


@pytest.mark.parametrize("value", [{1, 2}, object(), len, np.array([object()])], ids=lambda value: type(value).__name__)
def test_what_is_no_plain_data_is_named(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^extras\['a'\]\[1\] is a .*: let its state_dict\(\) return"):
        plaindata.encode({"a": [0, value]}, "extras")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '["dict"]',
        '["system", "true"]',
        '["dtype", "load"]',
        '["array", "O", [1], "AAAAAAAAAAA="]',
        '["slot", 0, [1], "__builtins__", "cpu"]',
        "[" * 100_000,
        pickle.dumps({"a": 1}, 0).decode(),
    ],
)
def test_what_we_did_not_write_is_an_error_and_nothing_else(text: str) -> None:
    with pytest.raises(ValueError, match="not plain data"):
        plaindata.decode(text)


@pytest.fixture
def alone() -> Any:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_a_message_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    assert messages.broadcast_json({"a": [1, None]}, 0) == {"a": [1, None]}
    assert messages.broadcast("", 0) == ""
    assert messages.all_gather_json(["b", 2.5]) == [["b", 2.5]]
    monkeypatch.setattr(messages, "MAX_BYTES", 99)
    for send in (lambda: messages.broadcast("x" * 100, 0), lambda: messages.all_gather_json("x" * 100)):
        with pytest.raises(ConfigurationError, match="at most 99"):
            send()


def test_nothing_of_ours_calls_what_unpickles() -> None:
    """The programs of the other tests show it of what they run; this, of the rest.

    Two calls of Horovod's interface send any object of the script, as it calls them.
    """
    calls = re.compile(r"\bpickle\b|\.(all_gather_object|gather_object|scatter_object_list|broadcast_object_list)\(")
    sources = Path(messages.__file__).parents[1].rglob("*.py")
    found = [f"{path.parent.name}/{path.name}" for path in sources for _ in calls.findall(path.read_text())]
    assert found == ["horovod/objects.py"] * 2
