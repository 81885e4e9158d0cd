"""What is left out."""

import pytest

from harken.sources.selection import Selection


@pytest.mark.parametrize(
    "path", [".env", ".git/config", "a/.b/c", "a/x~", "#x#", "a.___jb_tmp___", "x.___jb_old___"]
)
def test_hidden_names_are_left_out_unless_asked_for(path: str) -> None:
    assert not Selection().takes_file(path)
    assert Selection(hidden=True).takes_file(path)


@pytest.mark.parametrize("path", ["a", "a/b.txt", "a~b", "a#", "x.tmp"])
def test_other_names_are_taken(path: str) -> None:
    assert Selection().takes_file(path)


@pytest.mark.parametrize(
    ("glob", "out", "taken"),
    [
        ("*.log", ["a.log", "x/y/a.log"], ["a.logs", "log"]),
        ("node_modules", ["node_modules/x", "a/node_modules/b/c"], ["node_modules2"]),
        ("docs/*.pdf", ["docs/a.pdf", "docs/a/b.pdf"], ["a.pdf", "x/docs/a.pdf"]),
        ("/build", ["build", "build/x"], ["a/build"]),
        ("./build/x", ["build/x"], ["build/y"]),
        ("build/", ["build/x", "a/build/x"], ["build", "a/build"]),
        ("a/b/", ["a/b/c"], ["a/b", "b/c"]),
        ("[ab]?", ["a1", "b2"], ["c1", "A1"]),
        ("*.MD", ["a.MD"], ["a.md"]),
    ],
)
def test_a_glob_leaves_out(glob: str, out: list[str], taken: list[str]) -> None:
    selection = Selection(exclude=["unrelated", glob])
    assert not [path for path in out if selection.takes_file(path)]
    assert [path for path in taken if selection.takes_file(path)] == taken


def test_a_folder_that_is_left_out_is_not_entered() -> None:
    assert not Selection(exclude=["b"]).takes("a/b", folder=True)
    assert Selection(exclude=["b"]).takes("a/c", folder=True)
