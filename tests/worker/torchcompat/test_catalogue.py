"""The private names of torch: all are in one folder, have a documented purpose, and exist in the pinned torch."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from elasticjob.diagnose import checks
from elasticjob.diagnose.findings import OK, WARN
from elasticjob.torchcompat import catalogue, failures, probe
from elasticjob.torchcompat.probe import Probe

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "worker_image/src/elasticjob"
OURS = {"_exit", "_getframe", "_current_frames"}  # of os and sys, which document them
LIGHTNINGS = {  # docs/frameworks.md names them, and its matrix runs them
    "integrations/lightning_session.py: self.lightning_module._on_before_batch_transfer",
    "integrations/lightning_session.py: inner._batches_that_stepped",
    "integrations/lightning_session.py: closure._result",
}
INTERPRETERS = {
    "launch/main_module.py: runpy._run_module_as_main",  # Modules/main.c of CPython calls it for `-m`
    "sessions/interrupt.py: _signal",  # Lib/signal.py wraps it, and five of its enumerations in each step cost too much
}
PRIVATE = {
    part
    for one in catalogue.PROBES
    for name in one.names
    for part in re.split(r"[.()]", name)
    if part.startswith("_") and not part.startswith("__")
} - {"_world"}  # so some of our own classes call their world; torch's is found by its module


def find_private_names(tree: ast.AST) -> Iterator[str]:
    """What a module uses that begins with an underscore and is not its own, and what the catalogue lists."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if node.attr.startswith("_") and not node.attr.startswith("__") and node.attr not in OURS and not is_own:
                yield ast.unparse(node)
            if node.attr in PRIVATE:
                yield node.attr
        elif isinstance(node, ast.Import | ast.ImportFrom):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for module in [*modules, *(alias.name for alias in node.names)]:
                if re.search(r"(^|\.)_[^_]", module):
                    yield module
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value in PRIVATE or node.value.startswith("torchelastic/"):
                yield node.value
        elif isinstance(node, ast.FunctionDef) and node.name in PRIVATE:
            yield node.name


@pytest.mark.parametrize(
    "text",
    [
        "dist.distributed_c10d._world",
        "self._pcontext",
        "import torch._dynamo",
        "from torch.distributed._tensor import DTensor",
        "getattr(agent, '_failures')",
        "key = 'torchelastic/role_info/'",
        "def _popen(self): ...",
    ],
)
def test_the_search_finds_each_kind_of_use(text: str) -> None:
    assert list(find_private_names(ast.parse(text)))


def test_no_other_folder_names_anything_private_of_torch() -> None:
    found = {
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in PACKAGE.rglob("*.py")
        if path.parent != PACKAGE / "torchcompat"
        for name in find_private_names(ast.parse(path.read_text()))
    }
    assert found == LIGHTNINGS | INTERPRETERS


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="another torch may be without some")
def test_the_pinned_torch_has_all() -> None:
    assert [one.purpose for one in catalogue.find_missing()] == []


@pytest.mark.parametrize("one", catalogue.PROBES, ids=lambda one: one.names[0].rpartition(".")[2])
def test_each_says_what_it_is_for_and_what_it_costs(one: Probe) -> None:
    assert one.purpose and one.without and one.names
    assert all(name.startswith(("torch.", "[")) for name in one.names)


def test_a_look_that_breaks_means_that_it_is_not_there() -> None:
    def broken() -> bool:
        raise AttributeError("renamed")

    assert not Probe("a purpose", ("torch._gone",), "nothing", broken).holds()


def test_a_name_is_found_by_its_path() -> None:
    assert probe.find("torch.distributed.elastic.agent.server.api.SimpleElasticAgent.run") is not None
    assert probe.find("torch.distributed.elastic.no.such") is None
    assert probe.find("no_such_package.name") is None


def test_the_doctor_lists_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Probe("workers fly", ("torch._wings",), "they walk", lambda: False)
    there = Probe("workers run", ("torch.legs",), "they walk", lambda: True)
    monkeypatch.setattr(catalogue, "PROBES", (there,))
    assert checks.check_torch_internals({}).status == OK
    monkeypatch.setattr(catalogue, "PROBES", (gone, there))
    finding = checks.check_torch_internals({})
    assert finding.status == WARN
    assert "1 of 2: workers fly (torch._wings): they walk" in finding.detail
    assert checks.check_torch_internals in checks.CHECKS


def test_the_runtime_page_has_the_table() -> None:
    page = (ROOT / "docs/runtime.md").read_text()
    rows = [
        f"| {one.purpose} | {', '.join(f'`{short(name)}`' for name in one.names)} | {one.without} |"
        for one in catalogue.PROBES
    ]
    assert [row for row in rows if row not in page] == []


def short(name: str) -> str:
    """A dotted path without its package: what one searches for."""
    return name if " " in name else ".".join(name.split(".")[-2:])


def test_torch_raises_the_types_that_are_looked_for() -> None:
    assert failures.can_be_recognized()
