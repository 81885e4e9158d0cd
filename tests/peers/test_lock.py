"""What npm installs is the same everywhere: exact versions, checksums, and the public registry alone."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
LOCKS = [
    path
    for folder in ("tests", "bench")
    for path in sorted((ROOT / folder).rglob("package-lock.json"))
    if "node_modules" not in path.parts
]
REGISTRY = "https://registry.npmjs.org/"


def test_there_is_a_lock() -> None:
    assert ROOT / "tests/peers/package-lock.json" in LOCKS


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.parent.name)
def test_every_package_comes_from_the_public_registry_with_a_checksum(lock: Path) -> None:
    packages = json.loads(lock.read_text())["packages"]
    for name, package in packages.items():
        if name:  # the empty name is the folder itself
            assert package["resolved"].startswith(REGISTRY), name
            assert package["integrity"].startswith("sha512-"), name


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.parent.name)
def test_the_versions_are_exact_and_the_lock_is_of_them(lock: Path) -> None:
    wanted = json.loads(lock.with_name("package.json").read_text())["dependencies"]
    packages = json.loads(lock.read_text())["packages"]
    assert packages[""]["dependencies"] == wanted
    for name, version in wanted.items():
        assert packages[f"node_modules/{name}"]["version"] == version
