"""Which modules are imported ahead because a library of the script will import them."""

from __future__ import annotations

import pytest

from elasticjob.launch.frameworks import find_late
from elasticjob.launch.leading import Attempt, Import, Step

DATASETS, DEEPSPEED, MUON = (
    Attempt((Import(name),)) for name in ("datasets", "deepspeed", "deepspeed.runtime.zero.muon.muon_optimizer")
)
HUGGING_FACE = (DATASETS, DEEPSPEED)
ACCELERATE = Import("accelerate", ("Accelerator",))


@pytest.mark.parametrize(
    ("steps", "text", "expected"),
    [
        pytest.param([], "", (), id="nothing"),
        pytest.param([Import("torch")], "", (), id="torch"),
        pytest.param([ACCELERATE], "", HUGGING_FACE, id="accelerate"),
        pytest.param([Import("accelerate.utils", ("set_seed",))], "", HUGGING_FACE, id="a module of accelerate"),
        pytest.param([Attempt((ACCELERATE,))], "", HUGGING_FACE, id="in an attempt"),
        pytest.param([Import("transformers", ("Trainer",))], "", HUGGING_FACE, id="the Trainer"),
        pytest.param([Import("trl", ("SFTConfig", "SFTTrainer"))], "", (DEEPSPEED,), id="a Trainer of TRL"),
        pytest.param([Import("transformers", ("Trainer",)), ACCELERATE], "", HUGGING_FACE, id="once"),
        pytest.param([Import("transformers", ("AutoModel",))], "", (), id="a model"),
        pytest.param([Import("transformers")], "", (), id="nobody knows what"),
        pytest.param([Import("deepspeed")], "", (MUON,), id="DeepSpeed"),
        pytest.param([Import("deepspeed"), ACCELERATE], "", (DATASETS, DEEPSPEED, MUON), id="both"),
        pytest.param(
            [ACCELERATE], "os.environ['HF_DATASETS_CACHE'] = args.cache", (DEEPSPEED,), id="the script prepares it"
        ),
        pytest.param(
            [Import("elasticjob")],
            "import elasticjob\nworld = elasticjob.init()\nelasticjob.report(step=1)",
            (Import("elasticjob", ("init", "report")),),
            id="what ElasticJob loads when it is used",
        ),
        pytest.param([], "x()\nimport elasticjob\nelasticjob.init()", (), id="after something else has happened"),
    ],
)
def test_what_a_library_will_import(steps: list[Step], text: str, expected: tuple[Step, ...]) -> None:
    assert find_late(steps, [text]) == expected


def test_the_scripts_own_modules_count_as_the_script() -> None:
    texts = [
        "import elasticjob\nfrom own import train\nelasticjob.init()",
        "import elasticjob\ndef train():\n  os.environ['HF_HOME'] = '/'\n  elasticjob.init(), elasticjob.Checkpointer",
    ]
    late = find_late([Import("elasticjob"), ACCELERATE], texts)
    assert late == (DEEPSPEED, Import("elasticjob", ("init", "Checkpointer")))
