"""Random specs over the CRD's own schema: most values are valid, some are not, and templates are of all kinds.

One seed gives one sequence of specs. Valid sizes stay small, since the cluster creates the pods.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
JUNK: tuple[Any, ...] = (None, True, -1, 0, 2**31, 2**63, 1.5, "", "x", "ä\n", "9" * 300, [], ["x"], {}, {"x": 1}, [[]])
SIZES = (1, 1, 2, 3)
CONTAINER = {"name": "worker", "image": "light/agent:1", "command": ["sleep", "1000"]}


def read_schema() -> dict[str, Any]:
    crd = yaml.safe_load((ROOT / "crds" / "elasticjob.dev_elasticjobs.yaml").read_text())
    spec: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return spec


class Maker:
    """Creates specs; `junk` is the share of values that may be invalid."""

    def __init__(self, seed: int, junk: float = 0.04) -> None:
        self._dice = random.Random(seed)
        self._junk = junk
        self._schema = read_schema()

    def spec(self) -> dict[str, Any]:
        made = self._object(self._schema, 0.35)
        made["template"] = self.template()
        made.pop("templateRef", None)  # it would wait for a template that nobody makes
        if self._dice.random() < 0.02:
            del made["template"]
        return made

    def _value(self, schema: dict[str, Any], name: str = "") -> Any:
        dice = self._dice
        if dice.random() < self._junk:
            return dice.choice(JUNK)
        if schema.get("x-kubernetes-int-or-string"):
            return dice.choice(("auto", "cpu", "gpu", 1, 2, "2", 0, -1, "many", 10**6))
        if "enum" in schema:
            return dice.choice(schema["enum"])
        kind = schema.get("type")
        if kind == "object":
            return self._object(schema, 0.4)
        if kind == "array":
            return [self._value(schema["items"], name) for _ in range(dice.randint(0, 3))]
        if kind == "boolean":
            return dice.random() < 0.5
        if kind == "integer":
            return self._integer(schema, name)
        return dice.choice(("", "a", "10.0.0.1:2379", "elasticjob.dev/operator", "PodScheduled", "ü" * 5))

    def _integer(self, schema: dict[str, Any], name: str) -> int:
        if "eplica" in name or name == "spares":
            return self._dice.choice(SIZES)
        low, high = schema.get("minimum", -(2**31)), schema.get("maximum", 2**40)
        return self._dice.choice((low, low + 1, 5, 60, high))

    def _object(self, schema: dict[str, Any], share: float) -> dict[str, Any]:
        dice, made = self._dice, {}
        for name, inner in schema.get("properties", {}).items():
            if name in schema.get("required", ()) or dice.random() < share:
                made[name] = self._value(inner, name)
        if dice.random() < 0.03:
            made["notAField"] = dice.choice(JUNK)
        extra = schema.get("additionalProperties")
        if isinstance(extra, dict):
            made |= {f"key{i}": self._value(extra) for i in range(dice.randint(0, 2))}
        return made

    def template(self) -> Any:
        """A valid pod template with some parts replaced, validly or not."""
        dice = self._dice
        if dice.random() < 0.05:
            return dice.choice([j for j in JUNK if isinstance(j, dict)])
        container: dict[str, Any] = dict(CONTAINER)
        spec: dict[str, Any] = {"containers": [container]}
        template: dict[str, Any] = {"spec": spec}
        for _ in range(dice.choice((0, 0, 1, 1, 2, 4))):
            where, name, values = dice.choice(_PARTS)
            target = {"container": container, "spec": spec, "template": template}[where]
            target[name] = dice.choice(JUNK) if dice.random() < 0.3 else dice.choice(values)
        return template


_PARTS: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
    ("container", "name", ("w", "Bad_Name", "elasticjob-runtime")),
    ("container", "image", ("", "a b")),
    ("container", "command", (["true"], ["false"], ["/no/such/program"], [])),
    ("container", "args", (["--x"],)),
    ("container", "env", ([{"name": "A", "value": "1"}], [{"name": "PET_RDZV_BACKEND", "value": "c10d"}],
                          [{"value": "1"}])),
    ("container", "envFrom", ([{"configMapRef": {"name": "not-there"}}],)),
    ("container", "ports", ([{"containerPort": 29500}], [{"containerPort": 70000}])),
    ("container", "resources", ({"limits": {"cpu": "10m"}}, {"limits": {"cpu": "lots"}},
                                {"limits": {"nvidia.com/gpu": "64"}},
                                {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}})),
    ("container", "volumeMounts", ([{"name": "no-volume", "mountPath": "/x"}],
                                   [{"name": "elasticjob", "mountPath": "/x"}])),
    ("container", "terminationMessagePolicy", ("File", "FallbackToLogsOnError", "Never")),
    ("spec", "containers", ([], [CONTAINER, CONTAINER], [CONTAINER, {**CONTAINER, "name": "side"}])),
    ("spec", "initContainers", ([{**CONTAINER, "name": "first", "command": ["true"]}], [CONTAINER])),
    ("spec", "restartPolicy", ("Never", "Always", "OnFailure", "Sometimes")),
    ("spec", "terminationGracePeriodSeconds", (0, 1, -1, 600)),
    ("spec", "nodeSelector", ({"kubernetes.io/hostname": "nowhere"}, {"a": 1})),
    ("spec", "hostNetwork", (True, False)),
    ("spec", "serviceAccountName", ("not-there", "default", "Bad_Name")),
    ("spec", "tolerations", ([{"operator": "Exists"}], [{"operator": "Perhaps"}])),
    ("spec", "affinity", ({"podAntiAffinity": {}}, {"nodeAffinity": []})),
    ("spec", "volumes", ([{"name": "v", "emptyDir": {}}], [{"name": "elasticjob"}], [{"name": "v"}, {"name": "v"}])),
    ("spec", "priorityClassName", ("not-there",)),
    ("spec", "schedulerName", ("nobody",)),
    ("spec", "activeDeadlineSeconds", (1, 0)),
    ("spec", "securityContext", ({"runAsNonRoot": True}, {"runAsUser": -5})),
    ("spec", "notAField", (1,)),
    ("template", "metadata", ({"labels": {"app": "x"}}, {"labels": {"bad key!": "x"}}, {"labels": {"a": 1}},
                              {"annotations": {"a": "b"}}, {"finalizers": ["x"]}, {"name": "mine"},
                              {"labels": {"elasticjob.dev/job-name": "other"}})),
)  # fmt: skip
