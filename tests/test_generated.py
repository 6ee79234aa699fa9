"""Generated files are committed together with the change that alters them."""

from __future__ import annotations

from pathlib import Path

from elasticjob_operator import crd

ROOT = Path(__file__).parents[1]


def test_the_committed_crd_is_fresh() -> None:
    committed = (ROOT / "crds" / "elasticjob.dev_elasticjobs.yaml").read_text()
    assert committed == crd.render_crd(), "run `make generate` and commit the result"
