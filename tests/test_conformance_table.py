"""The generator of docs/conformance.md, run on small projects of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import conformance_table
from tests.conformance_table import Clause, Proofs, load_clauses, problems, render

CONFIGURATION = """\
[tool.pytest.ini_options]
addopts = ["--import-mode=importlib", "--strict-markers"]
markers = ["clause(*numbers): a clause", "field(*numbers): a case"]
"""
CLAUSES = """\
[subscription]
R1 = { level = "must", side = "server", text = "Nothing unasked." }
[field]
F1 = { text = "A case." }
"""
PROVEN = """\
import pytest

pytestmark = pytest.mark.field("F1")

@pytest.mark.clause("R1")
class TestClass:
    def test_method(self): pass

@pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.clause("R1"))])
def test_parameters(n): pass
"""


def lay(root: Path, tests: str, clauses: str = CLAUSES) -> Path:
    """A project with one test file."""
    (root / "tests").mkdir()
    (root / "pyproject.toml").write_text(CONFIGURATION)
    (root / "tests" / "clauses.toml").write_text(clauses)
    (root / "tests" / "test_it.py").write_text(tests)
    return root


def run(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """The command on that project, as a user runs it."""
    command = [sys.executable, conformance_table.__file__, "--root", str(root), *options]
    bare = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, env=bare, capture_output=True, text=True, timeout=50, check=False)


def test_markers_of_modules_classes_functions_and_parameters_count(tmp_path: Path) -> None:
    root = lay(tmp_path, PROVEN)
    assert run(root).returncode == 0
    table = (root / "docs" / "conformance.md").read_text("utf-8")
    names = ("TestClass::test_method", "test_parameters")
    both = "<br>".join(f"[`test_it.py::{name}`](../tests/test_it.py)" for name in names)
    assert f"| R1 | must | server | Nothing unasked. | {both} |" in table
    assert f"| F1 | A case. | {both} |" in table
    assert run(root, "--check").returncode == 0


def test_a_clause_without_a_test_fails_the_check(tmp_path: Path) -> None:
    root = lay(tmp_path, PROVEN.replace("R1", "F1"))
    run(root)
    result = run(root, "--check")
    assert result.returncode == 1
    assert result.stderr == "conformance: R1 has no test: Nothing unasked.\n"


def test_an_unknown_clause_fails_the_check(tmp_path: Path) -> None:
    root = lay(tmp_path, PROVEN + '\n@pytest.mark.clause("R99")\ndef test_more(): pass\n')
    run(root)
    result = run(root, "--check")
    assert result.returncode == 1
    assert "R99 is not in tests/clauses.toml, but is named by tests/test_it.py::test_more" in result.stderr


@pytest.mark.parametrize("text", [None, "old"])
def test_a_table_that_is_out_of_date_fails_the_check(tmp_path: Path, text: str | None) -> None:
    root = lay(tmp_path, PROVEN)
    if text is not None:
        (root / "docs").mkdir()
        (root / "docs" / "conformance.md").write_text(text)
    result = run(root, "--check")
    assert result.returncode == 1
    assert "out of date: run `make conformance`" in result.stderr


def test_tests_that_cannot_be_collected_fail_and_say_why(tmp_path: Path) -> None:
    result = run(lay(tmp_path, "import no_such_module"))
    assert result.returncode == 1
    assert "no_such_module" in result.stderr


@pytest.mark.parametrize(
    ("clauses", "reason"),
    [
        ("[other]\nX1 = { text = 't' }", "unknown section [other]"),
        ("[stdio]\nT1 = { text = 't', colour = 'red' }", "T1"),
    ],
)
def test_a_mistake_in_the_clauses_is_named(tmp_path: Path, clauses: str, reason: str) -> None:
    result = run(lay(tmp_path, PROVEN, clauses))
    assert result.returncode == 1
    assert reason in result.stderr


def test_problems_name_both_kinds() -> None:
    found = problems(
        [Clause("R1", "stdio", "One."), Clause("R2", "stdio", "Two.")], {"R2": ["t"], "Z": ["a", "b"]}
    )
    assert found == ["R1 has no test: One.", "Z is not in tests/clauses.toml, but is named by a, b"]


def test_a_clause_without_a_test_shows_in_the_table() -> None:
    table = render([Clause("T1", "stdio", "a | b", "must", "both"), Clause("F1", "field", "A case.")], {})
    assert "| T1 | must | both | a \\| b | **none** |\n\n## Cases from the field" in table


def test_the_parameters_of_a_test_count_once() -> None:
    proofs = Proofs()
    for test in ("a", "b", "a"):
        proofs.add("R1", test)
    assert proofs.tests == {"R1": ["a", "b"]}


def test_the_clauses_of_this_release() -> None:
    clauses = load_clauses(conformance_table.ROOT / "tests" / "clauses.toml")
    numbers = [clause.number for clause in clauses]
    assert len(numbers) == len(set(numbers))
    whole = {f"{letter}{n}" for letter, last in (("R", 27), ("H", 14), ("T", 9)) for n in range(1, last + 1)}
    assert whole <= set(numbers)
    assert all("\n" not in clause.text and clause.text.endswith(".") for clause in clauses)
    assert all((clause.level and clause.side) or clause.section == "field" for clause in clauses)
