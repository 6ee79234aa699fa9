"""What `save` wrote is always restored; and what cannot be restored stops the training with the reason."""

from __future__ import annotations

import pytest

from torch_features import needs_fsdp_on_cpu
from worker.gang_helper import PROGRAMS, Member, run_gang
from worker.programs import optimizers_program


@pytest.fixture(scope="module")
def gang(tmp_path_factory: pytest.TempPathFactory) -> list[Member]:
    return run_gang(PROGRAMS / "optimizers_program.py", 2, str(tmp_path_factory.mktemp("optimizers")), timeout=150)


@pytest.mark.parametrize("steps", [0, 4])
@pytest.mark.parametrize("name", optimizers_program.names())
def test_every_optimizer_is_restored_by_objects_that_are_new(gang: list[Member], name: str, steps: int) -> None:
    assert gang[0].results[f"{name} restored after {steps}"] == [7, [], ""]


@pytest.mark.parametrize("name", optimizers_program.names())
def test_a_save_makes_no_step_of_the_optimizer(gang: list[Member], name: str) -> None:
    for member in gang:
        assert [member.results[f"{name} steps after {steps}"] for steps in (0, 4)] == [0, 4]


@needs_fsdp_on_cpu
def test_a_sharded_model_with_an_unused_layer_is_restored_at_another_size(gang: list[Member]) -> None:
    assert gang[0].results["sharded"] == [3, [], ""]


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("shape", "a.weight has the shape [5, 6], not [4, 6]"),
        ("bias", "it also has a.bias"),
        ("extra", "it has no b.weight, b.bias"),
        ("groups", "its optimizer has 1 parameter groups, not 2"),
        ("optimizer", "it has no optimizer"),
        ("SGD", "its optimizer is AdamW, not SGD"),
        ("Adam", "its optimizer is AdamW, not Adam"),
    ],
)
def test_a_checkpoint_of_another_model_stops_with_what_differs(gang: list[Member], case: str, reason: str) -> None:
    for member in gang:
        said = member.results[case]
        assert said.startswith("CheckpointFailedError: step 5 of "), said
        assert reason in said
        assert "another directory" in said


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_what_another_optimizer_refuses_changes_nothing(gang: list[Member], kind: str) -> None:
    for member in gang:
        assert member.results[f"{kind} untouched"] == [True, 0.5]


def test_a_model_of_another_precision_gets_converted_values_and_a_warning(gang: list[Member]) -> None:
    for member in gang:
        assert member.results["half"] == [5, "torch.bfloat16"]
    assert "converted to those of the model: from float32 to bfloat16" in gang[0].stderr


def test_an_evaluation_needs_no_optimizer(gang: list[Member]) -> None:
    assert gang[0].results["without an optimizer"] == 5


def test_an_optimizer_of_other_parameters_is_refused_at_once(gang: list[Member]) -> None:
    assert gang[0].results["foreign"].startswith("ConfigurationError: the optimizer")


def test_what_could_be_written_but_not_read_is_refused_when_it_is_saved(gang: list[Member]) -> None:
    for member in gang:
        assert "odd" in member.results["odd"], member.results["odd"]
        assert "CheckpointFailedError" in member.results["odd"]


def test_numbers_of_numpy_become_plain_ones(gang: list[Member]) -> None:
    assert gang[0].results["numbers"] == [1, "{'rate': 0.5, 'count': (3,)}"]
