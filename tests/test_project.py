"""The project's own order: who may import whom, what an import brings along, and what no file may hold."""
import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from positionlib.checkpoints.store import load_release, save_release
from tests.checkpoints.test_release import walk

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "positionlib"
MODULES = sorted(PACKAGE.rglob("*.py"))

FLOORS = {  # an import goes to the same floor or down, wherever in a file it stands
    "errors": 1, "contract": 1, "terms": 1, "forms": 1, "rotation": 1, "rules": 1, "kernels": 1, "data": 1, "sections": 1, "padding": 1, "frequencies": 1,
    "capabilities": 1, "constants": 1,
    "geometry": 2, "runtime": 2,
    "call": 3, "call_builders": 3, "manifest": 3, "manifest_io": 3, "manifest_rules": 3, "identity": 3,
    "mechanisms": 3, "attention": 3, "admission": 3, "counters": 3, "permutation": 3, "routes": 3, "transport": 3,
    "check": 4, "layers": 4, "shapes": 4, "checkpoints": 4, "widgets": 4, "lab": 4,
    "sharding": 4,
    "exercises": 5, "bench": 5,
}
BARE = {"torch", "numpy", "jaxtyping"}  # all that a bare GPU machine has
ALSO = {  # what a component may need besides; each is imported where it is used
    "kernels": {"triton"}, "call": {"pydantic"}, "manifest": {"pydantic"}, "manifest_io": {"yaml"},
    "widgets": {"anywidget", "ipywidgets", "traitlets", "matplotlib", "IPython"},
}


def component(module: Path) -> str:
    """`mechanisms` for positionlib/mechanisms/t5.py, `call` for positionlib/call.py, `` for positionlib/__init__.py."""
    parts = module.relative_to(PACKAGE).with_suffix("").parts
    return "" if parts == ("__init__",) else parts[0]


def imports(module: Path) -> set[str]:
    """Every module that a file imports, in full, anywhere in it; names imported from a package count as modules."""
    package = ("positionlib", *module.relative_to(PACKAGE).parent.parts)
    found = set()
    for node in ast.walk(ast.parse(module.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            source = ".".join(filter(None, [base, node.module]))
            inside = source.split(".")[0] == "positionlib"
            found |= {f"{source}.{alias.name}" for alias in node.names} if inside else {source}
    return found


def breaches(module: Path, floors: dict[str, int] = FLOORS) -> list[str]:
    """Imports of one file that run up, run sideways between mechanisms, or need more than the component may."""
    here, name = component(module), module.relative_to(ROOT).as_posix()
    if not here or module.relative_to(PACKAGE).as_posix() == "mechanisms/__init__.py":
        return []  # a front door opens every room behind it
    if here not in floors:
        return [f"{name}: {here!r} stands on no floor"]
    found = []
    for target in sorted(imports(module)):
        parts = target.split(".")
        if parts[0] == "positionlib":
            there = parts[1] if len(parts) > 1 and parts[1] in floors else ""
            if not there and floors[here] < 4:
                found.append(f"{name}: imports the front door ({target})")
            elif there and floors[there] > floors[here]:
                found.append(f"{name}: {here} (floor {floors[here]}) imports {target} (floor {floors[there]})")
            elif here == there == "mechanisms" and parts[2].split("_")[0] != module.stem.split("_")[0]:
                found.append(f"{name}: one mechanism imports another ({target})")
        elif parts[0] not in sys.stdlib_module_names | BARE | ALSO.get(here, set()):
            if floors[here] < 4:
                found.append(f"{name}: needs {parts[0]}, which a bare machine lacks")
    return found


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.relative_to(PACKAGE).as_posix())
def test_imports_only_go_down(module):
    assert breaches(module) == []


@pytest.mark.parametrize("place, source, complaint", [
    ("rules.py", "from positionlib.geometry import AttentionGeometry", "rules (floor 1) imports positionlib.geometry"),
    ("rules.py", "def f():\n    from .attention import attend", "rules (floor 1) imports positionlib.attention.attend"),
    ("geometry.py", "from . import call", "geometry (floor 2) imports positionlib.call"),
    ("mechanisms/t5.py", "from positionlib.mechanisms.alibi import ALiBi", "one mechanism imports another"),
    ("mechanisms/t5.py", "from ..lab import cases", "mechanisms (floor 3) imports positionlib.lab.cases"),
    ("mechanisms/t5.py", "import positionlib as pl", "imports the front door"),
    ("geometry.py", "def f():\n    import matplotlib.pyplot", "needs matplotlib"),
    ("elsewhere.py", "", "'elsewhere' stands on no floor"),
])
def test_an_import_that_runs_back_is_found(tmp_path, monkeypatch, place, source, complaint):
    module = tmp_path / "positionlib" / place
    module.parent.mkdir(parents=True)
    module.write_text(source)
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path / "positionlib")
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    found = breaches(module)
    assert len(found) == 1 and complaint in found[0]


def test_an_import_that_goes_down_is_none(tmp_path, monkeypatch):
    module = tmp_path / "positionlib" / "mechanisms" / "sinusoidal_algebra.py"
    module.parent.mkdir(parents=True)
    module.write_text("import math\nimport torch\nfrom ..rules import frequency_ladder\nfrom .sinusoidal import sinusoidal_rows")
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path / "positionlib")
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    assert breaches(module) == []


def python(source: str) -> str:
    done = subprocess.run([sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


OPTIONAL = ["triton", "matplotlib", "anywidget", "ipywidgets", "IPython", "pydantic", "yaml"]


def test_importing_the_library_brings_nothing_optional():
    said = python(f"""
import sys, torch, numpy, jaxtyping
before = set(sys.modules)
import positionlib
print(sorted({set(OPTIONAL)!r} & (set(sys.modules) - before)))""")
    assert said == "[]"


def test_attention_runs_on_a_bare_machine():
    said = python(f"""
import sys, torch, numpy, jaxtyping
for name in {OPTIONAL!r}:
    sys.modules.setdefault(name, None)  # an import of it now raises
import positionlib as pl
geometry = pl.AttentionGeometry.causal_self(3)
t5 = pl.T5Bias(heads=2, num_buckets=32, max_distance=128, bidirectional=False)
torch.nn.init.zeros_(t5.weight)
v = torch.tensor([0.0, 3.0, 6.0]).reshape(1, 1, 3, 1).expand(1, 2, 3, 4)
out = pl.attend(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4), v, t5(geometry), geometry)
print([round(x, 6) for x in out[0, 1, :, 0].tolist()])""")
    assert said == "[0.0, 1.5, 3.0]", "with equal scores a causal row is the mean of what it sees"


@cache
def documented_methods() -> set[str]:
    """Names of the methods that some class of the package documents: an override need not say it again."""
    classes = [node for module in MODULES for node in ast.walk(ast.parse(module.read_text("utf-8")))
               if isinstance(node, ast.ClassDef)]
    return {method.name for cls in classes for method in cls.body
            if isinstance(method, ast.FunctionDef) and ast.get_docstring(method)}


def test_the_lines_of_the_readme_run_as_they_stand():
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S)[1]
    said = python(block + """
print(list(out.shape), geometry.key_positions.shape[-1], geometry.query_positions.tolist(), bool(geometry.visible.all()))""")
    assert said == "[1, 8, 1, 64] 513 [512] True"


def test_the_migration_of_the_readme_runs_as_it_stands(tmp_path, monkeypatch):
    block, = (block for block in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S) if "load_release" in block)
    monkeypatch.chdir(tmp_path)
    save_release("positions", walk("DRAFT"), replaces=0)
    exec(block, {})
    stored = load_release("positions")
    assert (stored.revision, stored.release.state, stored.release.new.capacity, stored.release.serving.capacity) == (2, "TABLE_MIGRATED", 2048, 4)


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.relative_to(PACKAGE).as_posix())
def test_every_public_name_has_a_docstring(module):
    if component(module) in {"lab", "exercises"} and re.fullmatch(r"x\w+", module.stem):
        return  # a section's cases and answers; what each is stands where it is registered
    missing = []
    told_elsewhere = {"forward", "extra_repr"} | documented_methods()

    def visit(body, prefix=""):
        for node in body:
            if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
                continue
            attribute = any(isinstance(d, ast.Name) and d.id == "property" for d in node.decorator_list) and len(node.body) == 1
            if not (ast.get_docstring(node) or attribute or prefix and node.name in told_elsewhere):
                missing.append(prefix + node.name)
            if isinstance(node, ast.ClassDef):
                visit(node.body, f"{node.name}.")

    visit(ast.parse(module.read_text("utf-8")).body)
    assert missing == []


def tracked(*suffixes: str) -> list[Path]:
    """Files under version control or about to be, so that a file is held to the rules before its first commit."""
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                            capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout: its files are not known")
    files = [ROOT / name for name in listed.stdout.splitlines()]
    return [file for file in files if file.is_file() and (not suffixes or file.suffix in suffixes)]


def test_no_source_file_is_longer_than_300_lines():
    long = {file.relative_to(ROOT).as_posix(): count for file in tracked(".py", ".js", ".css")
            if (count := len(file.read_text("utf-8").splitlines())) > 300}
    assert long == {}


# Written in pieces, or this file would find itself.
FORBIDDEN = re.compile("|".join([
    "/" + r"(?:home|Users)/\w", "/" + r"root/\w", re.escape(str(ROOT)) + r"(?:/|\b)", "file:" + "///",
    r"pypi" + r"\.org/simple", r"files\.pythonhosted" + r"\.org", r"registry\.npmjs" + r"\.org", "--(?:extra-)?index" + "-url",
    "--find" + "-links",
]))


def test_no_file_names_a_machine_or_a_registry():
    found = []
    for file in tracked():
        if file.suffix in {".npz", ".png", ".woff", ".woff2"} or "fixtures" in file.parts:
            continue
        for number, line in enumerate(file.read_text("utf-8", "replace").splitlines(), 1):
            if match := FORBIDDEN.search(line):
                found.append(f"{file.relative_to(ROOT)}:{number}: {match[0]}")
    assert found == []


@pytest.mark.parametrize("line", ["see /" + "home/me/x", "pip install --extra-index" + "-url x", "file:" + "///x", f"{ROOT}/x"])
def test_the_search_for_machines_finds_them(line):
    assert FORBIDDEN.search(line)
