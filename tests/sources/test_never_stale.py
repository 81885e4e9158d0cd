"""A folder in turmoil, and a client that fetches what it is told of: in the end it has what is there."""

from __future__ import annotations

import contextlib
import random
import shutil
import threading
from pathlib import Path
from urllib.parse import unquote

import pytest

from harken.core.events import Event, ResourcesListChanged, ResourceUpdated
from harken.sources.folder import Folder
from tests.sources.conftest import LIMIT

NAMES = ("a", "b c", "d#", "é")


class Client:
    """Holds every file's content as it was when it last heard of it, and the list likewise."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.contents: dict[str, bytes | None] = {}
        self.listed: list[str] = []
        self.news = threading.Condition()

    def begin(self) -> None:
        self.listed = list(self.folder.seen.paths)
        for path in self.listed:
            self.fetch(path)

    def __call__(self, *events: Event) -> None:
        with self.news:
            for event in events:
                if isinstance(event, ResourcesListChanged):
                    self.listed = list(self.folder.seen.paths)
                elif isinstance(event, ResourceUpdated):
                    self.fetch(unquote(event.uri.removeprefix("notes:///")))
            self.news.notify_all()

    def fetch(self, path: str) -> None:
        self.contents[path] = None
        with contextlib.suppress(OSError):
            self.contents[path] = (Path(self.folder.root) / path).read_bytes()

    def has(self, truth: dict[str, bytes]) -> bool:
        held = {path: content for path, content in self.contents.items() if content is not None}
        return held == truth and self.listed == sorted(truth)


def truth(root: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(root)): file.read_bytes()
        for file in root.rglob("*")
        if file.is_file() and not file.is_symlink() and not file.name.startswith(".")
    }


def disturb(root: Path, dice: random.Random) -> None:
    """One thing that happens to folders. It may be impossible just now."""

    def somewhere() -> Path:
        return root.joinpath(*dice.choices(NAMES, k=dice.randint(1, 3)))

    def write() -> None:
        somewhere().write_bytes(dice.randbytes(dice.randint(0, 3)))

    def save() -> None:
        target = somewhere()
        target.with_name(".temporary").write_bytes(dice.randbytes(2))
        target.with_name(".temporary").replace(target)

    def remove() -> None:
        victim = somewhere()
        victim.unlink() if victim.is_file() else shutil.rmtree(victim)

    def begin_anew() -> None:
        shutil.rmtree(root)
        root.mkdir()

    def move_away_and_back() -> None:
        root.rename(root.with_name("away"))
        root.with_name("away").rename(root)

    def make_folder() -> None:
        somewhere().mkdir(parents=True)

    def rename() -> None:
        somewhere().rename(somewhere())

    def link() -> None:
        somewhere().symlink_to(root)

    usual = [write] * 10 + [save] * 4 + [remove] * 3 + [make_folder] * 4 + [rename] * 6
    rare = [begin_anew, move_away_and_back, link]
    with contextlib.suppress(OSError):
        dice.choice(usual if dice.random() < 0.98 else rare)()


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_the_client_has_what_is_there(notes: Path, seed: int) -> None:
    dice = random.Random(seed)
    folder = Folder(notes, base_uri="notes:///", rescan=3_600)  # hints alone must do
    client = Client(folder)
    with folder.watching(client):
        client.begin()
        for _ in range(400):
            disturb(notes, dice)
            if dice.random() < 0.05:
                with client.news:  # spreads what happens over the turns of the watch
                    client.news.wait(dice.random() / 20)
        with client.news:
            assert client.news.wait_for(lambda: client.has(truth(notes)), LIMIT), (
                client.contents,
                client.listed,
                truth(notes),
            )
