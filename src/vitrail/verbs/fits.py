"""A training run on pictures that Python holds: `vitrail.train` without a name for its data, for estimators."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrail.data import Dataset
from vitrail.data.source import refuse_broken
from vitrail.prediction import Predictor
from vitrail.ranks import Ranks, join_ranks
from vitrail.runtimes.runtime import Floats
from vitrail.runtimes.torch_runtime import TorchRuntime
from vitrail.training.auto_config import resolve
from vitrail.training.config import TrainConfig
from vitrail.training.feature_cache import FeatureCache, compute_features
from vitrail.training.feature_store import FOLDER, Features, FeatureStore, backbone_of, features_key
from vitrail.training.listener import Listener
from vitrail.training.plan import settle
from vitrail.training.run import carry_out
from vitrail.training.run_data import contents_key
from vitrail.training.run_folder import RunLock, begin
from vitrail.training.setup import Setup, prepare_run
from vitrail.verbs.samples import Samples


def train_on(
    dataset: Dataset, samples: Samples, changes: dict[str, Any], folder: Path
) -> tuple[Predictor, FeatureCache | None]:
    """The model that a run in a folder ends with; and where its features are, if only a head was trained."""
    ranks, listener = join_ranks(str(changes.get("device", "auto"))), Listener()
    config, dataset = resolve("", changes, ranks, listener.said, dataset=dataset)
    setup = prepare_run(config, dataset) if _needs_no_timing(config) else settle(config, dataset, ranks, listener)[0]
    with RunLock() as lock:
        begin(setup, folder, lock)
        cache = None
        if setup.config.start.training.on_features:
            cache = FeatureCache.of(setup.model, setup.preprocess)
            _provide_features(setup, samples, cache, ranks, folder)
        predictor = carry_out(setup, ranks, folder, listener, resume=False)[1]
    return predictor, cache


def _needs_no_timing(config: TrainConfig) -> bool:
    """A head takes moments: nothing is decided by measuring, which would take longer than the run."""
    by_number = isinstance(config.machine.batch_size, int)
    return config.start.training.on_features and config.schedule.minutes is None and by_number


def _provide_features(setup: Setup, samples: Samples, cache: FeatureCache, ranks: Ranks, folder: Path) -> None:
    """Put the features of all splits into the run folder, where training finds them."""
    backbone = backbone_of(setup.model, setup.preprocess)
    predictor = Predictor(runtime=TorchRuntime(backbone.build().to(ranks.device)), **backbone.facts())
    digests = dict(zip(samples.keys, samples.digests, strict=True))
    for split, source in setup.dataset.splits.items():
        key = features_key(backbone, source, contents_key(folder, source))
        store = FeatureStore(folder=folder / FOLDER, split=split, key=key, count=len(source))
        rows, broken = compute_features(
            predictor, [digests[source.key(index)] for index in range(len(source))], source.stream, cache
        )
        refuse_broken(
            {source.key(index): why for index, why in broken.items()}, len(source), setup.dataset.max_broken_rate
        )
        indices = sorted(rows)
        features = torch.from_numpy(np.stack([rows[index] for index in indices]))
        store.join(Features(features, torch.tensor(indices, dtype=torch.long)))


def classify(predictor: Predictor, features: dict[int, Floats]) -> dict[int, Floats]:
    """What the head makes of features."""
    runtime = predictor.runtime
    assert isinstance(runtime, TorchRuntime)
    if not features:
        return {}
    outputs = runtime.run(runtime.model.classify, torch.from_numpy(np.stack(list(features.values()))))
    return dict(zip(features, outputs.numpy(), strict=True))
