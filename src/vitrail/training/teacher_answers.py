"""What a teacher says of each fixed view of the training pictures: asked once, kept in the run folder.

`answers/view-V.safetensors` has the numbers of version V of every picture, of half precision; parts of it are written
as they come, and checked, as those of features are (`training/feature_store.py`). A part is always computed by the same
calls, so that it has the same bits whichever rank computes it, before or after an interruption.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitrail.ranks import Ranks
from vitrail.schema import to_dict
from vitrail.threads import cores, map_in_order
from vitrail.training.feature_store import ANSWERS, Features, FeatureStore, split_key
from vitrail.training.listener import Listener
from vitrail.training.run_data import contents_key
from vitrail.training.setup import Setup, plain_loader, training_loader
from vitrail.wording import counted


def keep_answers(
    setup: Setup, ranks: Ranks, listener: Listener, folder: Path, rows: Tensor | None = None
) -> Tensor:  # (views × pictures, width)
    """All answers, those in the run folder and the others computed now; only these `rows` of the pictures, if given."""
    count, views = len(setup.dataset.split("train")), setup.kept_views
    key = ranks.from_first(lambda: _key(setup, folder))
    stores = [
        FeatureStore(folder=folder / ANSWERS, split=f"view-{view}", key=f"{key}-{view}", count=count)
        for view in range(views)
    ]
    missing = [ranks.from_first(store.missing) for store in stores]
    if any(missing):
        pictures = counted(count, "training picture")
        size = f"{views * setup.answer_bytes / 1e6:,.1f} MB"
        what = pictures if views == 1 else f"{views} views of each of {pictures}"
        listener.said(f"asking the teacher about {what}, once; its answers take {size}")
    total = sum(map(len, missing))
    done = 0
    for view, (store, parts) in enumerate(zip(stores, missing, strict=True)):
        for _ in _compute(setup, ranks, store, view, parts[ranks.rank :: ranks.world_size]):
            done = min(done + ranks.world_size, total)
            listener.prepared("parts of the teacher's answers", done, total)
    ranks.wait()
    answers = torch.cat([(store.read_whole() or store.read(store.parts)).features for store in stores])
    ranks.wait()
    for store, own in zip(stores, answers.split(count), strict=True):
        ranks.from_first(lambda store=store, own=own: store.join(Features(own, torch.arange(count))))
    listener.ended()
    return answers if rows is None else answers[rows]


def _compute(setup: Setup, ranks: Ranks, store: FeatureStore, view: int, parts: list[int]) -> Iterator[int]:
    """Ask about the pictures of these parts of a view, and keep each."""
    teacher = setup.teacher
    assert teacher is not None
    on_features = setup.config.start.training.on_features  # of pictures as evaluation sees them
    loader = plain_loader(setup, "train", Ranks()) if on_features else training_loader(setup, ranks)

    def ask(part: int) -> tuple[int, Features]:
        samples = np.array(store.pictures(part))
        said = teacher.look(loader.view(view, samples).to(ranks.device)).cpu()
        return part, Features(said, torch.from_numpy(samples))

    threads = teacher.predictor.runtime.threads
    with cores(1):  # whichever thread computes
        for part, features in map_in_order(ask, parts, threads):
            store.write(part, features)
            yield part


def _key(setup: Setup, folder: Path) -> str:
    """Everything that the answers depend on."""
    teacher = setup.teacher
    assert teacher is not None
    own = teacher.predictor
    specs = [to_dict(each) for each in (own.preprocess, setup.preprocess, own.task, setup.task, setup.config.augment)]
    facts = [teacher.sha256, teacher.order, teacher.width, setup.config.machine.seed, specs]
    source = setup.dataset.split("train")
    return split_key(json.dumps(facts, sort_keys=True), source, contents_key(folder, source))
