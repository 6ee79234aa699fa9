"""The adapters with a small stand-in for each framework. tests/frameworks runs them with the frameworks themselves."""

from __future__ import annotations

import importlib
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from elasticjob.errors import ConfigurationError, ElasticJobError
from elasticjob.integrations import versions

LIGHTNING = {
    "lightning/__init__.py": "",
    "lightning/pytorch/__init__.py": "class Callback:\n    pass\n",
    "lightning/fabric/__init__.py": "",
    "lightning/fabric/plugins/__init__.py": "",
    "lightning/fabric/plugins/environments/__init__.py": (
        "import os\nclass TorchElasticEnvironment:\n"
        "    def world_size(self):\n        return int(os.environ['WORLD_SIZE'])\n"
    ),
}
TRANSFORMERS = {"transformers/__init__.py": "class TrainerCallback:\n    pass\n"}

Import = Callable[..., Any]


@pytest.fixture
def import_adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Import]:
    """Import an adapter anew, with a stand-in of its framework in this version."""
    before = set(sys.modules)

    def run(name: str, version: str | None, files: dict[str, str]) -> Any:
        if version is not None:
            info = tmp_path / f"{name}-{version}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        for path, text in files.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        monkeypatch.syspath_prepend(str(tmp_path))
        return importlib.import_module(f"elasticjob.integrations.{name}")

    yield run
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("lightning", "transformers") or name.startswith("elasticjob.integrations."):
            del sys.modules[name]


@pytest.fixture
def asked() -> Iterator[Callable[[], None]]:
    """Ask for a checkpoint as the agent does."""
    from elasticjob.checkpoint import requests

    handler = signal.getsignal(signal.SIGUSR1)
    requests.requested()
    yield lambda: os.kill(os.getpid(), signal.SIGUSR1)
    requests.clear()
    if not callable(handler):
        return
    signal.signal(signal.SIGUSR1, handler)


def requested() -> bool:
    from elasticjob.checkpoint import requests

    return requests.requested()


@pytest.mark.parametrize(
    ("name", "version", "message"),
    [
        ("lightning", "2.0.9", "needs lightning 2.4 or newer, and 2.0.9 is installed: pip install 'lightning>=2.4'"),
        ("transformers", "4.9.0", "needs transformers 4.43 or newer, and 4.9.0 is installed"),
        ("accelerate", "0.20.3", "needs accelerate 0.33 or newer, and 0.20.3 is installed"),
        ("accelerate", None, "needs accelerate, which is not installed: pip install 'accelerate>=0.33'"),
    ],
)
def test_a_framework_that_is_too_old_is_an_error_with_the_remedy(
    import_adapter: Import, name: str, version: str | None, message: str
) -> None:
    if version is None and versions.read_version(name) is not None:
        pytest.skip(f"{name} is installed")
    with pytest.raises(ElasticJobError) as caught:
        import_adapter(name, version, LIGHTNING if name == "lightning" else {})
    assert message in str(caught.value)
    assert isinstance(caught.value, ImportError), "an import that fails is an ImportError to those who expect one"


@pytest.mark.parametrize(
    ("version", "old"),
    [("2.3.9", True), ("2.4", False), ("2.10.0", False), ("2.4.0.dev1", False), ("3.0", False), ("unknown", False)],
)
def test_versions_are_compared_as_numbers(version: str, old: bool) -> None:
    assert versions.is_too_old(version, (2, 4)) is old


@pytest.mark.parametrize("size", [(4, 2), (6, 2), (3, 1), (1, 1)])
def test_lightning_gets_the_size_of_every_world(
    import_adapter: Import, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    adapter = import_adapter("lightning", "2.6.0", LIGHTNING)
    world, local = size
    monkeypatch.setenv("WORLD_SIZE", str(world))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(local))
    found = adapter.elastic_arguments()
    assert (found["devices"], found["num_nodes"]) == (local, world // local)
    found["plugins"][0].validate_settings(local, world // local)
    with pytest.raises(ConfigurationError, match=r"write Trainer\(\*\*elastic_arguments\(\)"):
        found["plugins"][0].validate_settings(local, world // local + 1)


def test_lightning_keeps_its_defaults_without_torchrun(import_adapter: Import, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = import_adapter("lightning", "2.6.0", LIGHTNING)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert adapter.elastic_arguments() == {}


def test_lightning_saves_when_it_is_asked(import_adapter: Import, asked: Callable[[], None], tmp_path: Path) -> None:
    adapter = import_adapter("lightning", "2.6.0", LIGHTNING)
    saved: list[str] = []
    trainer = SimpleNamespace(save_checkpoint=saved.append, global_step=7, max_steps=-1)
    module = SimpleNamespace(device="cpu")
    callback = adapter.ElasticJobCallback(tmp_path)
    callback.on_train_batch_end(trainer, module, {"loss": torch.ones(())}, None, 0)
    assert saved == []
    asked()
    callback.on_train_batch_end(trainer, module, None, None, 1)
    callback.on_train_batch_end(trainer, module, torch.ones(()), None, 2)
    assert saved == [str(tmp_path / "elasticjob.ckpt")]
    assert not requested()


def test_lightning_does_not_catch_sigterm(import_adapter: Import, tmp_path: Path) -> None:
    callback = import_adapter("lightning", "2.6.0", LIGHTNING).ElasticJobCallback(tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    try:
        callback.setup(None, None, "fit")
        signal.signal(signal.SIGTERM, lambda number, frame: None)  # as Lightning does
        callback.on_train_start(None, None)
        assert signal.getsignal(signal.SIGTERM) is before
    finally:
        signal.signal(signal.SIGTERM, before)


def test_the_newest_whole_checkpoint_of_lightning(import_adapter: Import, tmp_path: Path) -> None:
    find = import_adapter("lightning", "2.6.0", LIGHTNING).find_checkpoint
    folder = tmp_path / "saved"
    assert find(folder) is None
    for age, name in enumerate(["new.ckpt", "old.ckpt"]):
        (folder / name).mkdir(parents=True) if name == "new.ckpt" else (folder / name).touch()
        os.utime(folder / name, (1000 - age, 1000 - age))
    assert find(folder) == str(folder / "old.ckpt"), "a folder without meta.pt is not whole"
    (folder / "new.ckpt" / "meta.pt").touch()
    assert find(folder) == str(folder / "new.ckpt")


def set_before(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """A rule of the job has found the training sick after this step."""
    place = {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "localhost", "MASTER_PORT": 1}
    for name, value in {**place, "ELASTICJOB_RESTORE_BEFORE": step}.items():
        monkeypatch.setenv(name, str(value))


@pytest.mark.parametrize(("before", "name"), [(50, "elasticjob.ckpt"), (70, "best.ckpt"), (20, "epoch=0-step=10.ckpt")])
def test_lightning_goes_back_to_before_an_incident_whatever_its_files_are_called(
    import_adapter: Import, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, before: int, name: str
) -> None:
    """The names that people choose have no step, and neither has that of what the callback saves."""
    find = import_adapter("lightning", "2.6.0", LIGHTNING).find_checkpoint
    saved = {"last.ckpt": 80, "best.ckpt": 60, "elasticjob.ckpt": 40, "broken.ckpt": None, "epoch=0-step=10.ckpt": 10}
    for age, (file, step) in enumerate(saved.items()):
        if step is None:
            (tmp_path / file).write_text("no checkpoint")
        else:
            torch.save({"global_step": step, "state_dict": {"weight": torch.ones(1000)}}, tmp_path / file)
        os.utime(tmp_path / file, (1000 - age, 1000 - age))
    set_before(monkeypatch, before)
    assert find(tmp_path) == str(tmp_path / name)


def test_lightning_goes_back_to_a_sharded_checkpoint_from_before_an_incident(
    import_adapter: Import, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    find = import_adapter("lightning", "2.6.0", LIGHTNING).find_checkpoint
    for step, name in ((10, "a.ckpt"), (20, "b.ckpt"), (30, "c.ckpt")):
        (tmp_path / name).mkdir()
        torch.save({"global_step": step}, tmp_path / name / "meta.pt")
        os.utime(tmp_path / name / "meta.pt", (step, step))
    set_before(monkeypatch, 25)
    assert find(tmp_path) == str(tmp_path / "b.ckpt")


class Accelerator:
    """As much of accelerate's as the adapter uses."""

    is_main_process = True
    device = "cpu"

    def __init__(self) -> None:
        self.loaded: list[str] = []
        self.fails = False

    def save_state(self, folder: str) -> None:
        Path(folder).mkdir(parents=True)
        if self.fails:
            raise RuntimeError("killed")
        (Path(folder) / "model").write_text("weights")

    def load_state(self, folder: str) -> None:
        assert (Path(folder) / "model").exists()
        self.loaded.append(Path(folder).name)

    def wait_for_everyone(self) -> None: ...


def test_a_loop_with_accelerate(import_adapter: Import, asked: Callable[[], None], tmp_path: Path) -> None:
    adapter = import_adapter("accelerate", "1.15.0", {})
    accelerator, folder = Accelerator(), tmp_path / "saved"
    checkpoints = adapter.Checkpoints(accelerator, folder, every=10, keep=2)
    at = checkpoints.load({"epoch": 0, "step": 0})
    assert at == {"epoch": 0, "step": 0}
    for step in range(1, 36):
        at["step"] = step
        if step == 33:
            asked()
        checkpoints.after_step(at, total=100, loss=1.0)
    assert not requested()
    assert sorted(place.name for place in folder.iterdir()) == ["step-000000030", "step-000000033"]
    accelerator.fails = True
    at["step"] = 40
    with pytest.raises(RuntimeError, match="killed"):
        checkpoints.after_step(at)
    again = adapter.Checkpoints(accelerator, folder)
    assert again.load({"epoch": 5, "step": 0, "new": 1}) == {"epoch": 0, "step": 33, "new": 1}
    assert accelerator.loaded == ["step-000000033"]
    accelerator.fails = False
    at["step"] = 100
    again.after_step(at)
    assert json.loads((folder / "step-000000100" / "elasticjob.json").read_text()) == at


@pytest.mark.parametrize("wrong", [{"every": 0}, {"keep": 0}])
def test_wrong_numbers_of_checkpoints_are_refused(
    import_adapter: Import, tmp_path: Path, wrong: dict[str, int]
) -> None:
    adapter = import_adapter("accelerate", "1.15.0", {})
    with pytest.raises(ConfigurationError, match="must be at least 1"):
        adapter.Checkpoints(Accelerator(), tmp_path, **wrong)


class Mapped:
    def __getitem__(self, index: int) -> int:
        return index


class Stream:
    def __iter__(self) -> Iterator[int]:
        return iter(())


class Resumable(Stream):
    def state_dict(self) -> dict[str, int]:
        return {}


@pytest.mark.parametrize(
    ("dataset", "told"), [(Mapped(), False), (Stream(), True), (Resumable(), False), (None, False)]
)
def test_transformers_tells_of_a_loader_that_cannot_be_resumed(
    import_adapter: Import, tmp_path: Path, caplog: pytest.LogCaptureFixture, dataset: Any, told: bool
) -> None:
    adapter = import_adapter("transformers", "5.0.0", TRANSFORMERS)
    loader = SimpleNamespace(dataset=dataset)
    state = SimpleNamespace(is_world_process_zero=True, global_step=0, total_flos=0)
    arguments = SimpleNamespace(output_dir=str(tmp_path / "out"))
    with caplog.at_level(logging.WARNING):
        adapter.ElasticJobCallback().on_train_begin(arguments, state, None, train_dataloader=loader)
    assert ("has no state_dict" in caplog.text) is told
    assert ("ignore_data_skip=True" in caplog.text) is told


def test_transformers_saves_when_it_is_asked(import_adapter: Import, asked: Callable[[], None], tmp_path: Path) -> None:
    adapter = import_adapter("transformers", "5.0.0", TRANSFORMERS)
    callback = adapter.ElasticJobCallback()
    control = SimpleNamespace(should_save=False)
    state = SimpleNamespace(log_history=[{"loss": 1.0}], global_step=3, max_steps=10, total_flos=0)
    arguments = SimpleNamespace(device="cpu", train_batch_size=8, gradient_accumulation_steps=2, world_size=3)
    assert adapter.count_samples(arguments) == 48
    split = SimpleNamespace(split_batches=True)
    assert adapter.count_samples(SimpleNamespace(**vars(arguments), accelerator_config=split)) == 16
    assert not callback.on_step_end(arguments, state, control).should_save
    asked()
    assert callback.on_step_end(arguments, state, control).should_save
    callback.on_save(arguments, state, control)
    assert not requested()
    whole = tmp_path / "out" / "checkpoint-20"
    for place, text in (
        (whole, "{}"),
        (whole.with_name("checkpoint-30"), "{"),
        (whole.with_name("checkpoint-x"), "{}"),
    ):
        place.mkdir(parents=True)
        (place / "trainer_state.json").write_text(text)
    assert adapter.find_checkpoint(tmp_path / "out") == str(whole)


@pytest.mark.parametrize(
    ("seen", "work"),
    [
        pytest.param([(0, 0.0)], None, id="nothing is logged yet"),
        pytest.param([(0, 0.0), (10, 50.0)], 5.0, id="ten steps"),
        pytest.param([(100, 500.0), (110, 560.0)], 6.0, id="after a restart"),
        pytest.param([(0, 0.0), (10, 50.0), (10, 50.0)], 5.0, id="logged twice at a step"),
        pytest.param([(0, 0.0), (10, 0.0)], None, id="a model of which the Trainer knows nothing"),
        pytest.param([(0, 0.0), (10, 50.0), (20, 150.0)], 10.0, id="longer sequences"),
        pytest.param([(0, 0.0), (2, 0.0), (4, 0.0), (6, 30.0)], 5.0, id="evaluations log before it has added up"),
        pytest.param([(0, 0.0), (6, 30.0), (8, 30.0)], 5.0, id="an evaluation logs after it has"),
    ],
)
def test_the_work_of_a_step_follows_from_what_the_trainer_adds_up(
    import_adapter: Import, seen: list[tuple[int, float]], work: float | None
) -> None:
    counted = import_adapter("transformers", "5.0.0", TRANSFORMERS).WorkOfSteps()
    for step, total in seen:
        counted.note(step, total)
    assert counted.of_a_step == work


def test_transformers_tells_the_work_also_when_only_checkpoints_add_it_up(
    import_adapter: Import, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    adapter = import_adapter("transformers", "5.0.0", TRANSFORMERS)
    callback, told = adapter.ElasticJobCallback(), []
    monkeypatch.setattr(adapter.progress, "report", lambda *_, flops, **__: told.append(flops))
    place = {"device": "cpu", "train_batch_size": 1, "gradient_accumulation_steps": 1, "world_size": 1}
    arguments = SimpleNamespace(**place, output_dir=str(tmp_path))
    state = SimpleNamespace(is_world_process_zero=True, global_step=0, total_flos=0, log_history=[], max_steps=9)
    callback.on_train_begin(arguments, state, None)
    state.global_step, state.total_flos = 3, 15.0
    callback.on_save(arguments, state, None)  # the first to tell of it, with logging_strategy="no"
    callback.on_step_end(arguments, state, None)
    state.global_step, state.total_flos = 5, 100.0  # of another model, resumed
    callback.on_train_begin(arguments, state, None)
    callback.on_step_end(arguments, state, None)
    assert told == [5.0, None]


def test_transformers_goes_on_from_what_was_written_last_and_removes_what_is_not_whole(
    import_adapter: Import, tmp_path: Path
) -> None:
    adapter = import_adapter("transformers", "5.0.0", TRANSFORMERS)
    out = tmp_path / "out"
    for number, text, written in ((300, "{}", 1), (20, "{}", 3), (10, "{}", 2), (400, "{", 4), (5, "{", 4)):
        place = out / f"checkpoint-{number}"
        place.mkdir(parents=True)
        (place / "trainer_state.json").write_text(text)
        os.utime(place / "trainer_state.json", (written, written))
    assert adapter.find_checkpoint(out) == str(out / "checkpoint-20")
    callback, control = adapter.ElasticJobCallback(), SimpleNamespace()
    state = SimpleNamespace(is_world_process_zero=True, global_step=20, total_flos=0.0)
    callback.on_train_begin(SimpleNamespace(output_dir=str(out)), state, control)
    assert sorted(place.name for place in out.iterdir()) == [f"checkpoint-{n}" for n in (10, 20, 300, 5)], (
        "the Trainer would have deleted new ones for 400"
    )


def test_transformers_and_accelerate_go_back_to_before_an_incident(
    import_adapter: Import, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also where training has gone back once, so that what is sick has been written earlier."""
    of_transformers = import_adapter("transformers", "5.0.0", TRANSFORMERS)
    out, folder = tmp_path / "out", tmp_path / "made"
    for written, step in enumerate((10, 20, 100, 110, 30, 40)):
        place = out / f"checkpoint-{step}"
        place.mkdir(parents=True)
        (place / "trainer_state.json").write_text("{}")
        os.utime(place / "trainer_state.json", (written, written))
    set_before(monkeypatch, 40)
    assert of_transformers.find_checkpoint(out) == str(out / "checkpoint-30")

    of_accelerate = import_adapter("accelerate", "1.15.0", {})
    checkpoints = of_accelerate.Checkpoints(Accelerator(), folder, every=1, keep=9)
    for written, step in enumerate((10, 20, 100, 110, 30, 40)):
        checkpoints.after_step({"step": step})
        os.utime(folder / f"step-{step:09d}" / "elasticjob.json", (written, written))
    assert checkpoints.load({"step": 0}) == {"step": 30}
    set_before(monkeypatch, 5)
    assert checkpoints.load({"step": 0}) == {"step": 10}, "the oldest one is never left out"


def test_a_loop_with_accelerate_keeps_what_was_made_last(import_adapter: Import, tmp_path: Path) -> None:
    adapter = import_adapter("accelerate", "1.15.0", {})
    folder = tmp_path / "made"
    for step in (100, 200, 10, 20):  # training has gone back after 200
        checkpoints = adapter.Checkpoints(Accelerator(), folder, every=1, keep=2)
        checkpoints.after_step({"step": step})
        for age, place in enumerate(reversed(checkpoints._find())):
            os.utime(place / "elasticjob.json", (1000 - age, 1000 - age))
    assert sorted(place.name for place in folder.iterdir()) == ["step-000000010", "step-000000020"]
    assert checkpoints.load({"step": 0}) == {"step": 20}
