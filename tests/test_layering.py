"""Every import in the packages, those inside functions too, points down the layers of ARCHITECTURE.md.

    cli, client > server > scheduler > runner > engine > models > kernels_cpu

Leaves (gguf, tokenizer, chat, sampling, …) may be used from any layer and use each other in one direction only.
"""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("localllm", "kernels_cpu", "registry", "modelfiles")

# Each may import the ones after it, never one before it.
LAYERS = (
    *("localllm.cli", "localllm.client", "localllm.server", "localllm.scheduler"),
    *("localllm.maker", "localllm.convert", "localllm.runner", "localllm.engine", "localllm.models", "kernels_cpu"),
)
# Leaves of localllm, likewise: a leaf may import those after it.
LEAVES = (
    *("localllm.modelfile", "localllm.chat", "localllm.sampling", "localllm.grammar"),
    *("localllm.tokenizer", "localllm.gguf"),
)
# What a leaf has that is compiled.
COMPILED = {"localllm.grammar": ("kernels_cpu.automata", "kernels_cpu.compile")}
# Modules of the standard library's kind: importable by all of localllm, and importing only each other.
BASE = (
    *("localllm.env", "localllm.messages", "localllm.options", "localllm.durations", "localllm.errors"),
    *("localllm.tracebacks", "localllm.distribution", "localllm.frames", "localllm.records"),
    "localllm.__version__",
)
STANDALONE = ("kernels_cpu", "registry", "modelfiles")
# Layers that stay light: what they must never import, not even indirectly.
HEAVY = ("numpy", "numba", "llvmlite", "scipy", "gguf", "tokenizers", "sentencepiece", "fastapi", "pydantic")
LIGHT = {
    "localllm.cli": (*HEAVY, "uvicorn", "starlette"),
    "localllm.client": (*HEAVY, "uvicorn", "starlette"),
    "localllm.server": HEAVY,
    "localllm.scheduler": HEAVY,
    "registry.serve": (*HEAVY, "uvicorn", "typer", "rich"),
    "registry": (*HEAVY, "uvicorn", "starlette", "typer", "rich"),
}
# The command line looks at the server only to start one in its own process.
EXCEPTIONS = {("localllm.cli.serve", "localllm.server"), ("localllm.cli.registry", "localllm.server")}


def _files() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))


def _module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> Iterator[tuple[str, int]]:
    """(imported module or name, line) of every import statement and literal `import_module` call in a file."""
    module = _module_name(path)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(module, path, node)
            yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.Call) and _is_import_module(node.func) and node.args:
            argument = node.args[0]
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield argument.value, node.lineno


def _is_import_module(function: ast.expr) -> bool:
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in ("import_module", "__import__")


def _absolute(module: str, path: Path, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    base = package[: len(package) - node.level + 1]
    return ".".join([*base, *((node.module,) if node.module else ())])


def _within(name: str, units: tuple[str, ...]) -> str | None:
    return next((unit for unit in units if name == unit or name.startswith(f"{unit}.")), None)


def complaint(importer: str, imported: str) -> str | None:
    """Why `importer` may not import `imported`, or None where it may."""
    if not _within(imported, PACKAGES) or any(
        _within(importer, (a,)) and _within(imported, (b,)) for a, b in EXCEPTIONS
    ):
        return None
    alone = _within(importer, STANDALONE)
    if alone:
        return None if _within(imported, (alone,)) else f"{alone} imports nothing of ours"
    if _within(importer, BASE) and not _within(imported, BASE):
        return None if imported == "localllm" else "base modules import each other only"
    if _within(importer, LEAVES):
        return _leaf_complaint(importer, imported)
    from_layer, to_layer = _within(importer, LAYERS), _within(imported, LAYERS)
    if from_layer and to_layer and LAYERS.index(to_layer) < LAYERS.index(from_layer):
        return f"{from_layer} is below {to_layer}"
    if from_layer in LAYERS[3:] and _within(imported, ("registry",)):
        return "only the server and the command line know the registry"
    return None


def _leaf_complaint(importer: str, imported: str) -> str | None:
    if _within(imported, BASE) or imported == "localllm":
        return None
    from_leaf, to_leaf = _within(importer, LEAVES), _within(imported, LEAVES)
    if to_leaf is None and _within(imported, COMPILED.get(from_leaf or "", ())):
        return None
    if to_leaf is None:
        return f"{from_leaf} is a leaf"
    assert from_leaf is not None
    return None if LEAVES.index(to_leaf) >= LEAVES.index(from_leaf) else f"{from_leaf} is below {to_leaf}"


def test_imports_point_down() -> None:
    complaints = []
    for path in _files():
        importer = _module_name(path)
        for imported, line in imports_of(path):
            if why := complaint(importer, imported):
                complaints.append(f"{path.relative_to(ROOT)}:{line}: imports {imported}: {why}")
    assert not complaints, "\n".join(complaints)


def test_light_layers_name_no_heavy_import() -> None:
    complaints = []
    for path in _files():
        layer = _within(_module_name(path), tuple(LIGHT))
        for imported, line in imports_of(path) if layer else ():
            if _within(imported, LIGHT[layer or ""]):
                complaints.append(f"{path.relative_to(ROOT)}:{line}: {layer} must not import {imported}")
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("localllm.cli", LIGHT["localllm.cli"]),
        ("localllm.client", LIGHT["localllm.client"]),
        ("localllm.server", HEAVY),
        ("registry", LIGHT["registry"]),
        ("localllm.runner.templates", HEAVY),  # the server asks it what a model can do
    ],
)
def test_importing_a_light_layer_loads_nothing_heavy(module: str, heavy: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print(sorted(set({heavy!r}) & set(sys.modules)))"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("importer", "imported", "allowed"),
    [
        ("localllm.server.app", "localllm.scheduler.Scheduler", True),
        ("localllm.scheduler.process", "localllm.server.app", False),
        ("localllm.runner.main", "localllm.messages.Ready", True),
        ("localllm.runner.main", "localllm.scheduler.process", False),
        ("localllm.runner.main", "registry.store", False),
        ("localllm.cli.run", "localllm.client.Client", True),
        ("localllm.client", "localllm.cli.run", False),
        ("localllm.models.llama", "kernels_cpu.graph", True),
        ("localllm.convert.model", "localllm.models.build", True),
        ("localllm.models.llama", "localllm.convert.rope", False),
        ("localllm.models.llama", "localllm.engine.step", False),
        ("kernels_cpu.graph", "localllm.errors", False),
        ("kernels_cpu.graph", "kernels_cpu.ops", True),
        ("registry.store", "localllm.errors", False),
        ("localllm.chat.template", "localllm.errors.TemplateError", True),
        ("localllm.gguf.file", "localllm.tokenizer", False),
        ("localllm.tokenizer.bpe", "localllm.gguf.GGUFFile", True),
        ("localllm.sampling.top_k", "localllm.engine", False),
        ("localllm.env", "localllm.errors", True),
        ("localllm.env", "localllm.gguf", False),
        ("localllm.cli.serve", "localllm.server.serve", True),
    ],
)
def test_the_rules(importer: str, imported: str, allowed: bool) -> None:
    assert (complaint(importer, imported) is None) is allowed


def _declared(key: str) -> set[str]:
    """Import names of the distributions that pyproject.toml lists under `key`."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (block,) = re.findall(rf"^{key} = \[\n(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    return {name.replace("-", "_").lower() for name in re.findall(r'^ *"([A-Za-z0-9_-]+)', block, re.MULTILINE)}


def test_what_is_imported_is_declared_and_the_reverse() -> None:
    tops = {name.partition(".")[0] for path in _files() for name, _ in imports_of(path)}
    used = tops - set(PACKAGES) - sys.stdlib_module_names - {"__future__", "tomllib"}
    brought_by_numba = {"llvmlite"}
    imported_by_starlette = {"python_multipart"}
    assert used - brought_by_numba == _declared("dependencies") - imported_by_starlette
