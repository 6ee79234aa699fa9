"""Which device is the current one of a session's process: what torch and a script do on it is done there."""

from __future__ import annotations

import pytest
import torch

from elasticjob.sessions import session

pytestmark = pytest.mark.timeout(30)


@pytest.mark.parametrize(
    ("model", "chosen", "local_rank", "bound"),
    [
        pytest.param("cuda:2", 0, "3", 2, id="that of the model"),
        pytest.param(None, 0, "3", 3, id="that of its rank in the pod if there is no model yet"),
        pytest.param(None, 1, "3", 1, id="that which the script has chosen"),
        pytest.param("cuda", 0, "1", 1, id="a model without a number"),
        pytest.param(None, 0, "6", 2, id="more processes than devices"),
        pytest.param(None, 0, None, 0, id="no launcher"),
    ],
)
def test_the_device_of_a_process_is_no_other_one(
    monkeypatch: pytest.MonkeyPatch, model: str | None, chosen: int, local_rank: str | None, bound: int
) -> None:
    used: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: chosen)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", used.append)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if local_rank is not None:
        monkeypatch.setenv("LOCAL_RANK", local_rank)
    found = session._bind(None if model is None else torch.device(model))
    assert used == [found] == [torch.device("cuda", bound)]
