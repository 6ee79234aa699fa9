"""The imports at the start of a script, before it does anything else."""

from __future__ import annotations

import pytest

from elasticjob.launch.leading import (
    MAX_FILES,
    Attempt,
    Import,
    SetVariable,
    Source,
    Step,
    find_attributes,
    find_leading,
    find_packages,
)

OWN = {
    "helper": Source("import own_dependency\nVALUE = 1\n"),
    "noisy": Source("import before\nprint('hello')\nimport after\n"),
    "pack": Source("", is_package=True),
    "pack.model": Source("from . import layers\nfrom third.party import thing\n"),
    "pack.layers": Source("import deep\n"),
    "ring": Source("import ring\nimport once\n"),
}
AB = [Import("a"), Import("b")]
TRIED = [Attempt((Import("a"),)), Import("b")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", [], id="an empty script"),
        pytest.param("import (", [], id="no Python"),
        pytest.param('"""Text."""\nfrom __future__ import annotations\nimport a.b\n', [Import("a.b")], id="the first"),
        pytest.param("import a, b as c", [Import("a"), Import("b")], id="two in a line"),
        pytest.param("from a import b, c", [Import("a", ("b", "c"))], id="names"),
        pytest.param("from a import *", [Import("a")], id="a star"),
        pytest.param("import a\nmain()\nimport b", [Import("a")], id="a call ends it"),
        pytest.param("import a\nif x:\n  import b", [Import("a")], id="a condition ends it"),
        pytest.param("import a\nfor x in y: pass\nimport b", [Import("a")], id="a loop ends it"),
        pytest.param("import a\ndef f(): import c\nclass D: pass\nimport b", AB, id="definitions"),
        pytest.param("import a\nlog = getLogger(f(3))\nimport b", [Import("a")], id="in a call"),
        pytest.param("import a\nlog = logging.getLogger('a')\nx: int = 4\nimport b", AB, id="plain assignments"),
        pytest.param("import a\nx = time.time()\nimport b", AB, id="the time is read"),
        pytest.param("import a\nx = [d for d in y if len(d)] + z.w\nimport b", AB, id="expressions"),
        pytest.param("import a\n_ = load_dotenv()\nimport b", [Import("a")], id="a call whose result is kept"),
        pytest.param("import a\n_: bool = load_dotenv()\nimport b", [Import("a")], id="the same with a type"),
        pytest.param("import a\nx = f()()\nimport b", [Import("a")], id="a call of what is called"),
        pytest.param("import a\nx = os.environ['A']\nimport b", AB, id="the environment is read"),
        pytest.param("import a\nx = os.environ.pop('A')\nimport b", [Import("a")], id="the environment is changed"),
        pytest.param("import a\nsys.path[0] = 'x'\nimport b", [Import("a")], id="the path is changed"),
        pytest.param("import a\nx.y = 3\nimport b", [Import("a")], id="something else is changed"),
        pytest.param("import a\nclass D:\n  load()\nimport b", [Import("a")], id="a class that calls"),
        pytest.param("import a\nclass D:\n  x = load()\nimport b", [Import("a")], id="a class that assigns a call"),
        pytest.param("import a\nclass D:\n  import c\nimport b", [Import("a")], id="a class that imports"),
        pytest.param("import a\nclass D(make()): pass\nimport b", [Import("a")], id="a class of a made class"),
        pytest.param("import a\nclass D(meta=make()): pass\nimport b", [Import("a")], id="a made metaclass"),
        pytest.param("import a\n@load\nclass D: pass\nimport b", [Import("a")], id="a class is decorated"),
        pytest.param("import a\n@load\ndef f(): pass\nimport b", [Import("a")], id="a function is decorated"),
        pytest.param("import a\n@load()\nasync def f(): pass\nimport b", [Import("a")], id="by what is called"),
        pytest.param("import a\n@f.cache(load())\ndef f(): pass\nimport b", [Import("a")], id="with what is called"),
        pytest.param("import a\ndef f(x=load()): pass\nimport b", [Import("a")], id="a default"),
        pytest.param("import a\ndef f(*, x=load()): pass\nimport b", [Import("a")], id="a default of a keyword"),
        pytest.param("import a\ndef f() -> load(): pass\nimport b", [Import("a")], id="a type"),
        pytest.param(
            "import a\n@dataclass(frozen=True)\nclass D(Module, key=3):\n  'Text.'\n  x: int = field(default=3)\n"
            "  class E: y = 4\n  @property\n  def f(self): return load()\n"
            "@torch.no_grad()\ndef f(x, y=torch.device('cpu'), *, z=3) -> list[int]: load()\nimport b",
            AB,
            id="definitions of many kinds",
        ),
        pytest.param(
            "import os\nos.environ['A'] = 'b'\nfrom os import environ\nenviron.setdefault('C', 'd')\nimport x",
            [
                *(Import("os"), SetVariable("A", "b"), Import("os", ("environ",))),
                *(SetVariable("C", "d", is_default=True), Import("x")),
            ],
            id="variables with plain text",
        ),
        pytest.param("os.environ['A'] = f()\nimport x", [], id="a variable that is computed"),
        pytest.param("other['A'] = 'b'\nimport x", [], id="not the environment"),
        pytest.param("try:\n  import a\nexcept ImportError:\n  a = None\nimport b", TRIED, id="may fail"),
        pytest.param(
            "try:\n  import a\n  x = True\nexcept ImportError:\n  x = False\nelse:\n  y = 1\nimport b",
            TRIED,
            id="may fail, and more is set",
        ),
        pytest.param(
            "try:\n  import a\n  from own import x\nexcept ImportError:\n  pass\nelse:\n  import c\nimport b",
            [Attempt((Import("a"), Import("own", ("x",)), Import("c"))), Import("b")],
            id="several may fail",
        ),
        pytest.param("try:\n  import a\nexcept ImportError:\n  f()\nimport b", AB, id="must not fail"),
        pytest.param("try:\n  import a\nexcept ImportError:\n  import c\nimport b", AB, id="has a substitute"),
        pytest.param("try:\n  import a\nexcept ImportError:\n  pass\nelse:\n  f()\nimport b", [], id="then a call"),
        pytest.param("try:\n  import a\nexcept ImportError:\n  pass\nfinally:\n  f()\nimport b", [], id="last a call"),
        pytest.param(
            "try:\n  os.environ['A'] = 'b'\n  import a\nexcept ImportError:\n  pass\nimport b", [], id="sets a variable"
        ),
        pytest.param(
            "try:\n  import helper\nexcept ImportError:\n  pass\nimport b",
            [Attempt((Import("own_dependency"),)), Import("b")],
            id="its own module may fail",
        ),
        pytest.param(
            "try:\n  import noisy\nexcept ImportError:\n  pass\nimport b",
            [Attempt((Import("before"),))],
            id="its own module does something and may fail",
        ),
        pytest.param("try:\n  import ring\n  import ring\nexcept ImportError:\n  pass\nimport b",
                     [Attempt((Import("once"),)), Import("b")], id="a ring may fail"),
        pytest.param("try:\n  import a\nexcept:\n  pass\nimport b", [], id="whatever happens"),
        pytest.param("try:\n  import a\nexcept OSError:\n  pass\nimport b", [], id="for another reason"),
        pytest.param("try:\n  import a\nexcept (ImportError, OSError):\n  pass\nimport b", [], id="or for another"),
        pytest.param(
            "try:\n  import a\nexcept (ImportError, ModuleNotFoundError):\n  pass\nexcept Exception:\n  pass\nimport b",
            TRIED,
            id="for any reason",
        ),
        pytest.param("try:\n  f()\nexcept ImportError:\n  pass\nimport b", [], id="something is tried"),
        pytest.param("if TYPE_CHECKING:\n  import a\nimport b", [Import("b")], id="only for types"),
        pytest.param("if typing.TYPE_CHECKING:\n  import a\nimport b", [Import("b")], id="the same, qualified"),
        pytest.param("if not TYPE_CHECKING:\n  load()\nimport b", [], id="not for types"),
        pytest.param("if __name__ == '__main__':\n  import a\n", [], id="the main part"),
        pytest.param("import helper\nimport b", [Import("own_dependency"), Import("b")], id="its own module"),
        pytest.param("import noisy\nimport b", [Import("before")], id="its own module does something"),
        pytest.param("import ring\nimport b", [Import("once"), Import("b")], id="its own modules in a ring"),
        pytest.param(
            "from pack.model import Net\nimport b",
            [Import("deep"), Import("third.party", ("thing",)), Import("b")],
            id="its own package",
        ),
        pytest.param("from . import x\nimport b", [], id="a package that it has not"),
    ],
)  # fmt: skip
def test_the_steps_of_a_script(text: str, expected: list[Step]) -> None:
    assert list(find_leading(text, OWN.get)) == expected


def test_a_script_of_very_many_modules_is_not_read_to_its_end() -> None:
    def read(name: str) -> Source | None:
        return Source(f"import x{name[3:]}") if name.startswith("own") else None

    text = "\n".join(f"import own{number}" for number in range(MAX_FILES + 5))
    assert find_leading(text, read) == tuple(Import(f"x{number}") for number in range(MAX_FILES))


def test_a_module_is_read_in_its_package() -> None:
    assert find_leading("from .layers import f\nimport b", OWN.get, "pack") == (Import("deep"), Import("b"))


def test_the_packages_of_steps() -> None:
    attempt = Attempt((SetVariable("A", "b"), Import("a.x"), Import("b")))
    steps: list[Step] = [Import("b.c"), SetVariable("A", "b"), attempt, Import("d")]
    assert find_packages(steps) == ("b", "a", "d")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("import a\na.b(a.c, a.b)", ("b", "c"), id="each once"),
        pytest.param("import a as x\nx.b, a.c", ("b",), id="under another name"),
        pytest.param("def f():\n  import a\n  return a.b.c", ("b",), id="in a function"),
        pytest.param("import a.b\na.b.c", (), id="a module of it"),
        pytest.param("from a import b\nb.c", (), id="a name of it"),
        pytest.param("a.b", (), id="not imported"),
        pytest.param("import (", (), id="no Python"),
    ],
)
def test_what_a_script_uses_of_a_package(text: str, expected: tuple[str, ...]) -> None:
    assert find_attributes(text, "a") == expected
