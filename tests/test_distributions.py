"""Each distribution contains what its users need: operator, command line and devcluster are separate."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OPERATOR_ONLY = ("kopf", "uvloop", "cryptography", "prometheus_client")
# The name to import, where it is not the name of the distribution.
IMPORT_NAMES = {"pyyaml": "yaml", "prometheus-client": "prometheus_client"}


@dataclass(frozen=True)
class Distribution:
    """One wheel: its folder with pyproject.toml, its package, and what it needs by extra ("" without one)."""

    folder: str
    source: str
    required: dict[str, set[str]]
    scripts: set[str]


OPERATOR = Distribution(
    ".",
    "operator/elasticjob_operator",
    {
        "": {"kubernetes", "pydantic", "aiohttp", "pyyaml", "click"},
        "cli": {"rich"},
        "operator": {"kopf", "uvloop", "cryptography", "prometheus-client"},
    },
    {"elasticjob-operator", "kubectl-elasticjob"},
)
DEVCLUSTER = Distribution(
    "devcluster",
    "devcluster/elasticjob_devcluster",
    {"": {"aiohttp", "cryptography", "pyyaml", "click"}},
    {"elasticjob-devcluster"},
)
BOTH = [pytest.param(OPERATOR, id="operator"), pytest.param(DEVCLUSTER, id="devcluster")]


def build_wheel(distribution: Distribution, folder: Path) -> zipfile.ZipFile:
    """The wheel, built without a network and without dependencies."""
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-index", "--no-build-isolation", "-q"]
    subprocess.run([*command, "-w", str(folder), str(ROOT / distribution.folder)], check=True, timeout=100)
    (wheel,) = folder.glob("*.whl")
    return zipfile.ZipFile(wheel)


def read_required(metadata: str) -> dict[str, set[str]]:
    """Names of required distributions by extra."""
    found: dict[str, set[str]] = {}
    for line in re.findall(r"^Requires-Dist: (.*)$", metadata, re.MULTILINE):
        name, extra = re.match(r"[A-Za-z0-9_.-]+", line), re.search(r"extra == [\"'](\w+)", line)
        assert name is not None, line
        found.setdefault(extra[1] if extra else "", set()).add(name[0].lower())
    return {extra: names for extra, names in found.items() if extra != "dev"}


@pytest.mark.parametrize("distribution", BOTH)
def test_a_wheel_holds_one_package_and_asks_for_what_it_needs(distribution: Distribution, tmp_path: Path) -> None:
    with build_wheel(distribution, tmp_path) as wheel:
        names = wheel.namelist()
        (metadata,) = [wheel.read(name).decode() for name in names if name.endswith("METADATA")]
        (scripts,) = [wheel.read(name).decode() for name in names if name.endswith("entry_points.txt")]
    package = Path(distribution.source).name
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {package}
    assert f"{package}/py.typed" in names
    assert read_required(metadata) == distribution.required
    assert set(re.findall(r"^([\w-]+) = ", scripts, re.MULTILINE)) == distribution.scripts


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]


@pytest.mark.parametrize("distribution", BOTH)
def test_nothing_imports_what_is_not_declared(distribution: Distribution) -> None:
    source = ROOT / distribution.source
    declared = {IMPORT_NAMES.get(name, name) for names in distribution.required.values() for name in names}
    # pydantic_core and yarl are parts of the interface of pydantic and aiohttp.
    allowed = {source.name, *declared, "pydantic_core", "yarl", *sys.stdlib_module_names}
    for path in source.rglob("*.py"):
        assert set(imported(path)) <= allowed, (path.name, set(imported(path)) - allowed)


HIDE = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name in {modules}:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Hidden())
"""


def run_without(modules: tuple[str, ...], code: str) -> subprocess.CompletedProcess[str]:
    """Runs the code in an interpreter that does not find these modules."""
    script = HIDE.format(modules=modules) + code
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)


def test_the_command_line_starts_without_the_operators_packages() -> None:
    """Every subcommand is imported."""
    code = (
        "from elasticjob_operator.cli.root import COMMANDS, cli, run\n"
        "assert all(cli.get_command(None, name) for name in COMMANDS)\n"
        "sys.exit(run(['list', '--help']))"
    )
    done = run_without(OPERATOR_ONLY, code)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage:" in done.stdout


@pytest.mark.parametrize(
    ("missing", "code", "remedy"),
    [
        pytest.param(
            OPERATOR_ONLY, "import elasticjob_operator.__main__", "elasticjob-operator[operator]", id="operator"
        ),
        pytest.param(
            ("rich",), "from elasticjob_operator import cli; cli.main()", "elasticjob-operator[cli]", id="cli"
        ),
    ],
)
def test_a_program_without_its_extra_names_it(missing: tuple[str, ...], code: str, remedy: str) -> None:
    done = run_without(missing, code)
    assert done.returncode != 0
    assert done.stderr.count("\n") == 1, done.stderr
    assert f"pip install '{remedy}'" in done.stderr


def test_the_operator_starts_without_the_command_lines_packages() -> None:
    done = run_without(("rich",), "from elasticjob_operator.__main__ import main; main(['run', '--help'])")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_devcluster_never_names_the_operator() -> None:
    """The import contract sees imports only. The devcluster starts none of our programs and knows none of our kinds."""
    for path in (ROOT / "devcluster").rglob("*.py"):
        found = re.search(r"elasticjob[-_]operator|elasticjob\.dev|ElasticJob\b", path.read_text())
        assert found is None, f"{path.relative_to(ROOT)}: {found}"


def test_the_operators_image_is_made_from_the_operator_alone() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert "devcluster" not in dockerfile + (ROOT / ".dockerignore").read_text()
    pins = (ROOT / "requirements/operator.txt").read_text()
    assert re.search(r"^kopf==", pins, re.MULTILINE)
    assert not re.search(r"^rich==", pins, re.MULTILINE)


def test_the_constraints_of_shared_packages_are_the_same() -> None:
    """Two distributions in one environment: they ask for the same versions of what both need."""
    asked: dict[str, set[str]] = {}
    for folder in (".", "devcluster"):
        project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
        optional = project.get("optional-dependencies", {}).get("operator", [])
        for text in (*project["dependencies"], *optional):
            asked.setdefault(re.split(r"[<>=]", text)[0], set()).add(text)
    assert not {name: texts for name, texts in asked.items() if len(texts) > 1}
