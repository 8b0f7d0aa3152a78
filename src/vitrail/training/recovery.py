"""The way back: which checkpoint a run continues from when it is resumed, or after it has diverged."""

from collections.abc import Callable
from pathlib import Path

from vitrail.ranks import Ranks
from vitrail.training import snapshots


class Recovery:
    """Finds checkpoints that are complete, finite and not known to diverge; reports those that are not."""

    def __init__(self, ranks: Ranks, say: Callable[[str], None]) -> None:
        self.ranks = ranks
        self.say = say
        self.restored = ""  # the checkpoint that was restored, until a step from it has worked
        self.bad = set[str]()  # checkpoints that diverged

    def go_back(self, folder: Path, restore: Callable[[Path], bool], *, whole_epochs: bool = False) -> bool:
        """Restore the newest such checkpoint of a folder, if any; `restore` returns whether its numbers are finite."""
        if self.restored:
            self.bad.add(self.restored)
        while True:
            path, damaged = self.ranks.from_first(
                lambda: snapshots.pick_whole(folder, self.bad, whole_epochs=whole_epochs)
            )
            if path is not None and not damaged:
                if not self.ranks.any(not restore(path)):
                    self.restored = path.name
                    return True
                damaged = {path.name: f"{path} holds numbers that are not finite."}
            for trouble in damaged.values():
                self.say(f"{trouble} Going back further.")
            self.bad |= set(damaged)
            self.ranks.from_first(lambda damaged=damaged: snapshots.set_aside(folder, damaged))
            if path is None:
                return False

    def stepped(self) -> None:
        """A step has worked."""
        self.restored = ""
