"""The content of `pip install ./worker_image`: our modules, websockets, and no torch."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from worker.gang_helper import REPOSITORY


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built without a network and without dependencies."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-index", "--no-build-isolation", "-q"]
    subprocess.run([*command, "-w", str(folder), str(REPOSITORY / "worker_image")], check=True, timeout=100)
    (found,) = folder.glob("elasticjob-*.whl")
    return found


def test_the_wheel_depends_on_websockets_only(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("METADATA")]
        metadata = archive.read(name).decode()
    required = re.findall(r"^Requires-Dist: ([A-Za-z0-9_.-]+)[^;\n]*(;.*extra.*)?$", metadata, re.MULTILINE)
    assert [name for name, extra in required if not extra] == ["websockets"]
    optional = {"matplotlib", "mpi4py", "mpich", "pyarrow", "numpy", "s3fs", "gcsfs", "adlfs"}
    assert {name for name, extra in required if extra} == optional
    assert "Requires-Python: >=3.10" in metadata


def test_the_wheel_holds_the_modules_and_the_commands(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (entry_points,) = [name for name in names if name.endswith("entry_points.txt")]
        text = archive.read(entry_points).decode()
    modules = {path.name for path in (REPOSITORY / "worker_image/src/elasticjob").glob("*.py")}
    assert {f"elasticjob/{name}" for name in modules} <= names
    assert "elasticjob/py.typed" in names
    assert "elasticjob = elasticjob.diagnose.cli:main" in text
    assert "elasticjob-run = elasticjob.run:main" in text
    assert "[torchrun.handlers]" in text


# An adapter is for those who have its framework, or tracker.
FRAMEWORKS = {
    "transformers": {"transformers"},
    "accelerate": {"accelerate"},
    "lightning": {"lightning", "lightning_fabric", "pytorch_lightning"},
    "lightning_session": {"lightning", "lightning_fabric", "pytorch_lightning"},
    "mlflow": {"mlflow"},
    "wandb": {"wandb"},
}


def test_nothing_imports_what_is_not_declared() -> None:
    allowed = {"torch", "websockets", "matplotlib", "mpi4py", "pyarrow", "elasticjob", *sys.stdlib_module_names}
    allowed |= {"fsspec", "aiohttp"}  # torch brings the one, and gcsfs the other
    for path in (REPOSITORY / "worker_image/src/elasticjob").glob("**/*.py"):
        imported = set(re.findall(r"^\s*(?:from|import) ([A-Za-z_0-9]+)", path.read_text(), re.MULTILINE))
        code = {name for name in imported if _is_code(path, name)}
        framework = FRAMEWORKS.get(path.stem, set()) if path.parent.name == "integrations" else set()
        assert code <= allowed | framework, (path.name, code - allowed)


def _is_code(path: Path, name: str) -> bool:
    import ast

    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import) and any(alias.name.partition(".")[0] == name for alias in node.names):
            return True
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == name:
            return True
    return False


def test_the_api_reference_is_fresh() -> None:
    """It is generated from the docstrings: run `make generate` after a change."""
    script = "import api_reference as one; print(one.render(), end='')"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=REPOSITORY / "scripts",
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == (REPOSITORY / "docs/api-reference.md").read_text()


def test_the_dependencies_in_the_project_file_are_few() -> None:
    project = tomllib.loads((REPOSITORY / "worker_image/pyproject.toml").read_text())["project"]
    assert [re.split(r"[<>=]", text)[0] for text in project["dependencies"]] == ["websockets"]
