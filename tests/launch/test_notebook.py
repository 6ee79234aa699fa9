"""The notebook of the examples, as Jupyter runs it: cell by cell, in a kernel that is a process of its own."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from elasticjob_devcluster.system import processes

NOTEBOOK = Path(__file__).parents[2] / "worker_image/examples/launch.ipynb"
CELL_SECONDS = 300  # for what takes ten seconds on an idle machine


def outputs(cell: dict[str, Any]) -> tuple[str, str]:
    """What a cell printed, and its value as text."""
    assert not [one for one in cell["outputs"] if one.get("name") == "stderr"], cell["outputs"]
    said = "".join(one["text"] for one in cell["outputs"] if one["output_type"] == "stream")
    values = [one["data"]["text/plain"] for one in cell["outputs"] if one["output_type"] == "execute_result"]
    return said, "".join(values)


@pytest.mark.cluster
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("local_programs")
async def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):  # none of the user's
        monkeypatch.setenv(name, str(tmp_path / name))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert all(not cell["outputs"] for cell in notebook.cells if cell["cell_type"] == "code"), "is stored without them"
    notebook.cells.append(nbformat.v4.new_code_cell("run.name, run.cluster.id"))
    where = {"metadata": {"path": str(tmp_path)}}
    await NotebookClient(notebook, timeout=CELL_SECONDS, kernel_name="python3", resources=where).async_execute()

    cells = {cell["id"]: outputs(cell) for cell in notebook.cells if cell["cell_type"] == "code"}
    job, cluster = ast.literal_eval(cells[notebook.cells[-1]["id"]][1])
    assert cells["launch"][1].startswith(f"Run(name='{job}'")
    assert f"{job}: Complete" in cells["result"][0]
    result = ast.literal_eval(cells["result"][1])
    assert abs(result["slope"] - 3) < 1.5
    assert result["workers"] in (1, 2)
    assert f"rank 0 of {result['workers']} is done" in cells["logs"][0]
    assert "elasticjob-result" not in cells["logs"][0]
    assert job in (tmp_path / "report.html").read_text()
    assert not processes.find_marked(processes.MARK_CLUSTER, cluster), "nothing is left"
