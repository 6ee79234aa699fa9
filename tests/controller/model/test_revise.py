"""The typed fields of a status match the models."""

from __future__ import annotations

from typing import Any, get_type_hints

import pytest
from pydantic import BaseModel

from elasticjob_operator import api
from elasticjob_operator.model.revise import FIELDS, revise


@pytest.mark.parametrize(("model", "fields"), FIELDS.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_each_field_has_the_type_that_the_model_declares(model: type[BaseModel], fields: Any) -> None:
    declared, known = get_type_hints(model), get_type_hints(fields)
    assert known
    assert known == {name: declared.get(name) for name in known}


def test_what_a_newer_operator_wrote_stays() -> None:
    before = api.Status.model_validate({"restarts": {"user": 3, "later": 1}, "soon": "x"})
    after = revise(before, restarts=revise(before.restarts, user=0))
    assert after.dump() == {**before.dump(), "restarts": {**before.restarts.dump(), "user": 0}}
