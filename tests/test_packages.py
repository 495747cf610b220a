"""What is installed: setuptools takes folders with an `__init__.py` alone, and what lies below others stays away."""

from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_folder_of_modules_is_a_package() -> None:
    roots = ("localllm", "kernels_cpu", "registry", "modelfiles")
    folders = {path.parent for root in roots for path in (ROOT / root).rglob("*.py")}
    assert not sorted(str(folder) for folder in folders if not (folder / "__init__.py").is_file())
