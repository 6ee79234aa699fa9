"""Recipes of docs/frameworks.md, as they stand there, under torchrun."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from worker.gang_helper import clean_environment

PAGE = Path(__file__).parents[3] / "docs/frameworks.md"


def find_recipe(word: str) -> str:
    """The Python block of the page that contains the word."""
    blocks = [part.partition("```")[0] for part in PAGE.read_text().split("```python\n")[1:]]
    (found,) = [block for block in blocks if word in block]
    return found


def test_every_worker_gets_the_tf_config_of_its_world(tmp_path: Path) -> None:
    script = tmp_path / "recipe.py"
    tell = f"open({str(tmp_path)!r} + '/' + os.environ['RANK'], 'w').write(os.environ['TF_CONFIG'])\n"
    script.write_text(find_recipe("TF_CONFIG") + tell)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((tmp_path / rank).read_text()) for rank in "01")
    assert first["cluster"] == second["cluster"]
    assert len(set(first["cluster"]["worker"])) == 2
    assert all(address.startswith("127.0.0.1:") for address in first["cluster"]["worker"])
    assert (first["task"], second["task"]) == ({"type": "worker", "index": 0}, {"type": "worker", "index": 1})
