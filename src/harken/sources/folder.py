"""A folder on disk as a source of events.

A thread of its own watches: the file system's hints say where to look, a new snapshot of that is taken, and
what differs from the one before is published. A change that no hint told of is found by looking everywhere,
which happens from time to time. The snapshot always lies behind the hints: a folder is watched first and
looked at then, so nothing that changes in between is lost.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import random
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, Self

from harken.core.events import Event, Kind, ResourcesListChanged, ResourceUpdated
from harken.errors import HarkenError, HubClosed
from harken.sources.hints import NOTHING, STEP, CannotWatch, Hints, Watcher
from harken.sources.paths import Naming, file_base
from harken.sources.selection import Selection
from harken.sources.snapshot import Difference, Identity, Tree, compare, files_of, identity_of, look

__all__ = ["Folder", "Publish", "Seen", "Watch", "events"]

logger: logging.Logger = logging.getLogger("harken")

RESCAN = 30.0  # seconds between two looks everywhere, by default
SOON = 1.5  # seconds until one that something has made advisable
POLL = 1.0  # seconds between two looks at what can't be watched
SHARE = 5  # looking everywhere takes one part in so many of the time at most,
LONGEST_REST = 3.0  # but a look that is due waits no longer than this many seconds
BURST = 1_000  # hints at once; the system keeps a limited number (Linux: 16,384) and drops the rest silently
ROUNDS = 5  # times that new folders are followed at once, before what was found is told first
PORTION = 5_000  # events in one publish, which takes the event loop a few milliseconds
FAREWELL = 1.0  # seconds that a watch has to end

EVERYWHERE = NOTHING._replace(everywhere=True)
UNWATCHABLE = (
    "cannot watch %s (%s): looking through it often instead, which takes longer to notice a change. "
    "On Linux, `sysctl fs.inotify` shows the limits; raise max_user_watches or max_user_instances"
)


class Publish(Protocol):
    """Takes events from any thread, as `Hub.publish_from_thread` does."""

    def __call__(self, *events: Event) -> None: ...


class Seen(NamedTuple):
    """What a folder holds, as far as was seen."""

    tree: Tree
    paths: Sequence[str]
    """Of all files, sorted."""


class Folder:
    """A folder whose files are resources.

    :param path: of the folder; it may come and go, and be reached through symbolic links. Links in it are
        neither listed nor followed.
    :param base_uri: the URI below which the files appear; by default the folder's own `file://` URI.
    :param hidden: whether hidden names count, and what editors leave beside a file while they save.
    :param exclude: shell globs of what is left out; see `Selection`.
    :param rescan: seconds, jittered, between two looks at everything, whatever the hints say.

    Raises InvalidURI for a `base_uri` that is none.
    """

    supports: frozenset[Kind] = frozenset({Kind.RESOURCES_LIST_CHANGED, Kind.RESOURCE_SUBSCRIPTIONS})
    """The kinds that a folder publishes (clause R20)."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        base_uri: str | None = None,
        hidden: bool = False,
        exclude: Sequence[str] = (),
        rescan: float = RESCAN,
    ) -> None:
        if rescan <= 0:
            raise ValueError(f"rescan must be above 0 seconds, not {rescan}")
        self.root: str = os.path.abspath(path)
        self.naming: Naming = Naming(file_base(self.root) if base_uri is None else base_uri)
        self.selection: Selection = Selection(hidden=hidden, exclude=exclude)
        self.rescan = rescan
        self.seen: Seen = Seen({}, ())
        """What was seen last; empty before the folder is watched, and while it is away."""
        self.watched = False
        """Whether a watch is on."""

    def watching(self, publish: Publish) -> Watch:
        """A context manager: as long as it lasts, changes are published. One at a time."""
        return Watch(self, publish)


class Watch:
    """Watches a folder, from the first snapshot on, as long as the context lasts.

    A context manager, and an async one that waits for its thread without holding up the event loop.
    """

    def __init__(self, folder: Folder, publish: Publish) -> None:
        self._folder = folder
        self._publish = publish
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._watcher = Watcher(folder.root, self._stop)
        self._owed: dict[Event, None] = {}
        self._again: set[str] = set()
        self._everything_at = 0.0
        self._blind_at = 0.0
        self._polling = False
        self._polling_until = 0.0
        self._took = 0.0
        self._thread = threading.Thread(target=self._run, name="harken-folder", daemon=True)

    def __enter__(self) -> Self:
        if self._folder.watched:
            raise RuntimeError(f"{self._folder.root} is watched already; a second watch needs its own Folder")
        self._folder.watched = True
        self._thread.start()
        try:
            self._ready.wait()
        except BaseException:  # Ctrl-C, most likely
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(FAREWELL)
        self._folder.watched = False

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(asyncio.to_thread(self.__exit__))

    def _run(self) -> None:
        turn = self._begin
        while not self._stop.is_set():
            try:
                turn()
            except Exception:
                # Whatever it is, the next look everywhere tells what was missed meanwhile.
                logger.exception("cannot look into %s; trying again", self._folder.root)
                self._everything_at = 0.0
                self._stop.wait(POLL)
            turn = self._turn
            self._ready.set()
        self._watcher.close()
        self._ready.set()

    def _begin(self) -> None:
        """The first snapshot. Nobody has seen anything before it, so nothing of it is news."""
        self._look_everywhere()
        for _ in range(ROUNDS):
            if self._again:
                self._stop.wait(STEP / 1000)
                self._look(self._again)
        self._owed.clear()

    def _turn(self) -> None:
        """Waits for hints, looks where they say, and publishes what has changed."""
        hints = self._hints()
        now = time.monotonic()
        if hints.everywhere or now >= self._everything_at or self._is_another():
            self._look_everywhere()
        elif where := hints.folders | self._again | self._blind(now):
            self._look(where)
        if hints.told >= BURST:
            self._everything_at = min(self._everything_at, now + max(SOON, self._rest()))
        self._deliver()

    def _hints(self) -> Hints:
        try:
            return self._watcher.wait()
        except CannotWatch as error:
            # A name that is no UTF-8 is reason enough for watchfiles to give up.
            logger.debug("watching %s anew: %s", self._folder.root, error)
            self._stop.wait(self._rest())
            return EVERYWHERE

    def _is_another(self) -> bool:
        """Whether there is another folder now than the one that was looked into, or none, or one again."""
        state = self._folder.seen.tree.get("")
        return identity_of(self._folder.root) != (None if state is None else state.identity)

    def _blind(self, now: float) -> frozenset[str]:
        """Folders to look into without a hint, since none will come."""
        if not self._watcher.blind or now < self._blind_at:
            return frozenset()
        self._blind_at = now + POLL
        return self._watcher.blind

    def _rest(self) -> float:
        """Seconds to leave between two looks everywhere, so that a large folder doesn't keep us busy."""
        return min(self._took * (SHARE - 1), LONGEST_REST)

    def _look_everywhere(self) -> None:
        begun = time.monotonic()
        # The watches are renewed too: one may have ended unheard.
        self._arm(_folders(self._folder.seen.tree))
        self._follow(self._looked(self._folder.seen.tree, {""}, everything=True))
        now = time.monotonic()
        self._took = now - begun
        pace = POLL if self._polling else self._folder.rescan
        self._everything_at = now + max(self._rest(), pace * random.uniform(0.75, 1.25))

    def _look(self, where: Collection[str]) -> None:
        self._follow(self._looked(self._folder.seen.tree, where))

    def _looked(self, known: Tree, where: Collection[str], *, everything: bool = False) -> Tree:
        return look(known, self._folder.root, self._folder.selection, where, everything=everything)

    def _follow(self, tree: Tree) -> None:
        """Watches the folders that are new in `tree`, looks into them once more, and takes the result."""
        unwatched: set[str] = set()
        for _ in range(ROUNDS):
            unwatched = set() if self._polling else self._watcher.unwatched(_folders(tree))
            if not unwatched:
                break
            tree = self._looked(tree, unwatched | self._arm(_folders(tree)).folders)
        self._see(tree)
        self._again |= unwatched

    def _arm(self, folders: Mapping[str, Identity]) -> Hints:
        """Watches these folders; where that can't be, everything is looked at often instead."""
        now = time.monotonic()
        if not folders or now < self._polling_until:
            return NOTHING
        try:
            hints = self._watcher.arm(folders)
        except CannotWatch as error:
            if not self._polling:
                logger.warning(UNWATCHABLE, self._folder.root, error)
            self._polling = True
            self._polling_until = now + self._folder.rescan
            return NOTHING
        self._polling = False
        return hints

    def _see(self, tree: Tree) -> None:
        """Makes `tree` what is served, and owes the hub what differs."""
        before = self._folder.seen
        difference = compare(before.tree, tree)
        listed = difference.added or difference.removed
        # Served first, published then: who hears of a change and asks gets it.
        self._folder.seen = Seen(tree, files_of(tree) if listed else before.paths)
        self._again = {path for path, state in tree.items() if not state.settled}
        self._owed.update(dict.fromkeys(events(difference, self._folder.naming)))

    def _deliver(self) -> None:
        """Publishes what is owed, at once if it is not too much; what the hub does not take stays owed."""
        while self._owed:
            portion = list(itertools.islice(self._owed, PORTION))
            try:
                self._publish(*portion)
            except HubClosed:
                return  # it may start anew: then it is told what changed meanwhile
            except (TimeoutError, HarkenError) as error:
                logger.warning("the hub takes no events now (%s); trying again", error)
                return
            for event in portion:
                del self._owed[event]


def events(difference: Difference, naming: Naming) -> Iterator[Event]:
    """What to publish. A file that came or went is updated too: whoever named it hears of it."""
    if difference.added or difference.removed:
        yield ResourcesListChanged()
    for path in sorted(itertools.chain(*difference)):
        yield from (ResourceUpdated(uri) for uri in naming.spellings(path))


def _folders(tree: Tree) -> dict[str, Identity]:
    return {path: state.identity for path, state in tree.items()}
