"""The order of samples."""

import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.data import (
    ArraySource,
    Augment,
    Batch,
    DataConfig,
    Dataset,
    Loader,
    LoaderConfig,
    Preprocess,
    normalize,
    open_data,
    preset,
)
from vitrail.data.loader import WINDOW, count_repeats, draw_evenly, evaluation_order, shuffle, training_order
from vitrail.errors import ConfigError, DataError
from vitrail.rng import Draws
from vitrail.threads import start_workers


def test_shards_are_read_a_window_at_a_time() -> None:
    blocks = [10] * 40
    order = shuffle(400, seed=0, epoch=0, blocks=blocks)
    assert sorted(order.tolist()) == list(range(400))
    for start in range(0, 400, WINDOW * 10):
        assert len(set(order[start : start + WINDOW * 10] // 10)) == WINDOW
    assert not np.array_equal(order, shuffle(400, seed=0, epoch=1, blocks=blocks))
    assert len(set(order[:10] // 10)) > 2  # shards of a window are mixed


def test_shuffles_are_even() -> None:
    """Each sample is as often in each tenth of the order."""
    counts = np.zeros((20, 10))
    for epoch in range(2000):
        order = shuffle(20, seed=3, epoch=epoch)
        counts[order, np.arange(20) // 2] += 1
    assert counts.min() > 130  # 200 expected, deviation 13
    assert counts.max() < 270


def test_classes_are_drawn_equally_often_and_so_are_the_pictures_of_a_class() -> None:
    labels = np.repeat([0, 1, 3], [61, 8, 1])[np.random.default_rng(0).permutation(70)]
    epochs = [draw_evenly(labels, 5, epoch) for epoch in range(9)]
    for drawn in epochs:
        counts = np.bincount(labels[drawn])[[0, 1, 3]]
        assert counts.sum() == 70
        assert counts.max() - counts.min() <= 1
    seen = np.bincount(np.concatenate(epochs), minlength=70)
    for label in (0, 1, 3):
        own = seen[labels == label]
        assert own.max() - own.min() <= 1, "none is forgotten"
        assert own.sum() == 9 * 70 / 3
    assert np.array_equal(draw_evenly(labels, 5, 3), epochs[3]), "nothing but counters"
    assert not np.array_equal(draw_evenly(labels, 6, 3), epochs[3])
    order = np.concatenate([labels[drawn] for drawn in epochs])
    assert abs(np.mean(order[1:] == order[:-1]) - 1 / 3) < 0.06, "classes do not come in a pattern"


def test_repeats_are_counted() -> None:
    assert count_repeats(np.array([7, 2, 7, 7, 0, 2])).tolist() == [0, 0, 1, 2, 0, 1]


def uneven(dataset: Dataset) -> Dataset:
    train = dataset.split("train")
    return replace(dataset, splits={"train": train.select([0, *np.flatnonzero(train.labels != train.labels[0])])})


def test_even_sampling_resumes_on_other_ranks_and_augments_each_repeat(arrays: Dataset) -> None:
    data, config = uneven(arrays), LoaderConfig(batch_size=8, workers=0, evenly=True)
    one = Loader(data, "train", SPEC, config, EVERYTHING)
    assert len(one) == len(data.split("train")) // 8, "the steps stay"
    one.set_epoch(2)
    iterator = iter(one)
    first = next(iterator)
    state, rest = one.state_dict(), list(iterator)
    ranks = []
    for rank in range(2):
        loader = Loader(data, "train", SPEC, replace(config, rank=rank, world_size=2), EVERYTHING)
        loader.load_state_dict(state)
        ranks.append(collect(loader))
    assert_same(join_ranks(ranks), rest)
    plain = replace(EVERYTHING, mixup=0.0, cutmix=0.0)
    batches = collect(Loader(data, "train", SPEC, config, plain))
    rare = [batch.images[row] for batch in batches for row in np.flatnonzero(batch.indices.numpy() == 0)]
    assert len(rare) > 3
    assert not any(torch.equal(rare[0], other) for other in rare[1:]), "each time another crop"
    usual = Loader(data, "train", SPEC, replace(config, evenly=False), EVERYTHING).state_dict()
    with pytest.raises(ConfigError, match="lacks evenly"):
        Loader(data, "train", SPEC, config, EVERYTHING).load_state_dict(usual)
    assert len(first.images) == 8


def test_shards_are_not_sampled(arrays: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ArraySource, "blocks", [23, 23])
    with pytest.raises(ConfigError, match='use balance="logit"'):
        Loader(arrays, "train", SPEC, LoaderConfig(batch_size=8, evenly=True), Augment())


def test_remainders() -> None:
    samples = np.arange(10)
    assert len(training_order(samples, 4)) == 2
    padded = training_order(samples, 4, remainder="pad")
    assert padded.samples.tolist() == [*range(10), 0, 1]
    assert training_order(np.arange(3), 8, remainder="pad").samples.tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    assert [len(evaluation_order(10, 4).positions(batch, 0, 1)) for batch in range(3)] == [4, 4, 2]


def test_the_last_batch_is_shared_out() -> None:
    order = evaluation_order(11, 8)
    assert [order.positions(1, rank, 4).tolist() for rank in range(4)] == [[], [8], [9], [10]]


SPEC = Preprocess(size=(16, 16))
EVERYTHING = Augment(
    crop="resized",
    policy="rand",
    magnitude_std=0.5,
    jitter=(0.4, 0.4, 0.4, 0.1),
    erase_rate=0.5,
    erase_fill="noise",
    mixup=0.8,
    cutmix=1.0,
    vertical_flip_rate=0.5,
    outlier_rate=0.4,
)


def collect(loader: Loader) -> list[Batch]:
    return list(loader)


def assert_same(ours: list[Batch], theirs: list[Batch]) -> None:
    assert len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one.indices, other.indices)
        assert torch.equal(one.targets, other.targets)
        assert torch.equal(one.images, other.images)


def join_ranks(ranks: list[list[Batch]]) -> list[Batch]:
    """Global batches from the parts of each rank."""
    return [Batch(*(torch.cat(parts) for parts in zip(*batches, strict=True))) for batches in zip(*ranks, strict=True)]


@pytest.mark.parametrize("kind", ["folder", "arrays"])
@pytest.mark.parametrize("augment", [None, EVERYTHING, replace(EVERYTHING, crop="pad", repeats=2, policy="three")])
def test_same_batches_with_any_number_of_workers_and_ranks(kind, augment, request) -> None:
    data = request.getfixturevalue(kind)
    config = LoaderConfig(batch_size=8, seed=7, workers=0)
    expected = collect(Loader(data, "train", SPEC, config, augment))
    for workers in (1, 4):
        assert_same(collect(Loader(data, "train", SPEC, replace(config, workers=workers), augment)), expected)
    ranks = [
        collect(Loader(data, "train", SPEC, replace(config, workers=2, rank=rank, world_size=2), augment))
        for rank in range(2)
    ]
    assert_same(join_ranks(ranks), expected)


def test_batch_size_does_not_change_a_sample(arrays: Dataset) -> None:
    small = Loader(arrays, "train", SPEC, LoaderConfig(batch_size=2, remainder="drop"), EVERYTHING)
    large = Loader(arrays, "train", SPEC, LoaderConfig(batch_size=46), EVERYTHING)
    together = Batch(*(torch.cat(parts) for parts in zip(*collect(small), strict=True)))
    assert_same([together], collect(large))


@pytest.mark.parametrize("workers", [0, 2])
def test_resume_in_mid_epoch(folder: Dataset, workers: int) -> None:
    config = LoaderConfig(batch_size=4, seed=3, workers=workers)
    loader = Loader(folder, "train", SPEC, config, EVERYTHING)
    loader.set_epoch(5)
    expected = collect(loader)
    states = []
    for _, _ in zip(loader, range(4), strict=False):
        states.append(loader.state_dict())
    resumed = Loader(folder, "train", SPEC, replace(config, workers=1), EVERYTHING)
    resumed.load_state_dict(states[2])
    resumed.set_epoch(5)  # as a training loop does; it must not go back to the start
    assert_same(collect(resumed), expected[3:])
    assert_same(collect(resumed), expected)  # and the next time through is whole


def test_resume_on_other_ranks(folder: Dataset) -> None:
    config = LoaderConfig(batch_size=4, workers=0)
    one = Loader(folder, "train", SPEC, config, EVERYTHING)
    iterator = iter(one)
    next(iterator)
    state = one.state_dict()
    rest = list(iterator)
    ranks = []
    for rank in range(2):
        loader = Loader(folder, "train", SPEC, replace(config, rank=rank, world_size=2), EVERYTHING)
        loader.load_state_dict(state)
        ranks.append(collect(loader))
    assert_same(join_ranks(ranks), rest)


@pytest.mark.parametrize("augment", [Augment(), EVERYTHING])
def test_outliers_have_no_class_and_leave_the_others_alone(arrays: Dataset, augment: Augment) -> None:
    config = LoaderConfig(batch_size=46)
    plain, batch = (
        collect(Loader(arrays, "train", SPEC, config, replace(augment, outlier_rate=rate)))[0] for rate in (0.0, 0.5)
    )
    strange = torch.as_tensor(Draws(0, 0, plain.indices.numpy()).one("outlier") < 0.5)
    assert 10 < int(strange.sum()) < 36
    assert (batch.targets[strange] == 0.5).all()
    expected = plain.targets if augment.mixes else torch.nn.functional.one_hot(plain.targets, 2)
    assert torch.equal(batch.targets[~strange], expected[~strange].float())
    assert torch.equal(batch.images[~strange], plain.images[~strange])
    assert not torch.isclose(batch.images[strange], plain.images[strange]).flatten(1).all(dim=1).any()


def test_outliers_of_several_labels_as_bytes(arrays: Dataset) -> None:
    source = arrays.split("train")
    assert isinstance(source, ArraySource)
    sets = ArraySource(source.images, np.ones((46, 3), dtype=np.uint8), "sets")
    data = replace(arrays, classes=("a", "b", "c"), splits={"train": sets}, task="several")
    batch = collect(
        Loader(data, "train", SPEC, LoaderConfig(batch_size=46, output="bytes"), Augment(outlier_rate=0.5))
    )[0]
    assert batch.images.dtype == torch.uint8
    strange = (batch.targets == 0).all(dim=1)
    assert 10 < int(strange.sum()) < 36
    assert (batch.targets[~strange] == 1).all()


def test_outliers_are_refused_for_numbers(arrays: Dataset) -> None:
    source = arrays.split("train")
    assert isinstance(source, ArraySource)
    values = ArraySource(source.images, np.ones((46, 1), dtype=np.float32), "values")
    data = replace(arrays, classes=("size",), splits={"train": values}, task="number")
    with pytest.raises(ConfigError, match="outlier_rate= is for classes and labels; these data have numbers"):
        Loader(data, "train", SPEC, LoaderConfig(batch_size=46), Augment(outlier_rate=0.5))


def test_resume_refuses_other_settings(arrays: Dataset) -> None:
    state = Loader(arrays, "train", SPEC, LoaderConfig(seed=1, batch_size=4), EVERYTHING).state_dict()
    with pytest.raises(ConfigError, match="seed was 1 and is now 2"):
        Loader(arrays, "train", SPEC, LoaderConfig(seed=2, batch_size=4), EVERYTHING).load_state_dict(state)


def test_a_break_does_not_shorten_the_next_pass(arrays: Dataset) -> None:
    loader = Loader(arrays, "train", SPEC, LoaderConfig(batch_size=8), Augment())
    for _ in loader:
        break
    assert len(collect(loader)) == len(loader) == 5


def test_epochs_differ_and_seeds_differ(arrays: Dataset) -> None:
    loader = Loader(arrays, "train", SPEC, LoaderConfig(batch_size=46), Augment())
    first = collect(loader)[0]
    loader.set_epoch(1)
    second = collect(loader)[0]
    other = collect(Loader(arrays, "train", SPEC, LoaderConfig(batch_size=46, seed=1), Augment()))[0]
    assert sorted(first.indices.tolist()) == list(range(46))
    assert first.indices.tolist() != second.indices.tolist() != other.indices.tolist()


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [1, 7, 30, 46])
def test_evaluation_sees_every_sample_once(arrays: Dataset, world_size: int, count: int) -> None:
    part = replace(arrays, splits={**arrays.splits, "val": arrays.split("val").select(range(count))})
    seen = []
    for rank in range(world_size):
        config = LoaderConfig(batch_size=30, rank=rank, world_size=world_size)
        seen += [index for batch in Loader(part, "val", SPEC, config) for index in batch.indices.tolist()]
    assert sorted(seen) == list(range(count))
    assert seen == sorted(seen) or world_size > 1


def test_training_ranks_get_equally_many_batches(arrays: Dataset) -> None:
    for remainder, expected in (("drop", 40), ("pad", 50)):
        config = LoaderConfig(batch_size=10, world_size=2, remainder=remainder)
        ranks = [collect(Loader(arrays, "train", SPEC, replace(config, rank=rank), Augment())) for rank in range(2)]
        assert [len(batch.images) for batches in ranks for batch in batches] == [5] * (expected // 5)
        seen = {index for batches in ranks for batch in batches for index in batch.indices.tolist()}
        assert len(seen) == min(expected, 46)


def test_repeats_show_a_sample_several_times_in_one_batch(arrays: Dataset) -> None:
    loader = Loader(arrays, "train", SPEC, LoaderConfig(batch_size=12), Augment(crop="pad", repeats=3))
    batches = collect(loader)
    assert len(batches) == 46 // 12
    for batch in batches:
        assert batch.indices.tolist() == batch.indices[:4].tolist() * 3
    first, second = batches[0].images[0], batches[0].images[4]
    assert not torch.equal(first, second)


def test_evaluation_is_the_preprocessing_and_nothing_else(folder: Dataset) -> None:
    from vitrail.data import prepare

    for batch in Loader(folder, "val", SPEC, LoaderConfig(batch_size=5)):
        for image, target, index in zip(*batch, strict=True):
            assert torch.equal(image, prepare(folder.split("val").picture(int(index)), SPEC))
            assert target == folder.split("val").labels[index]


def test_bytes_output(arrays: Dataset) -> None:
    batch = collect(Loader(arrays, "val", SPEC, LoaderConfig(output="bytes")))[0]
    assert batch.images.dtype == torch.uint8
    source = arrays.split("val")
    assert isinstance(source, ArraySource)
    assert torch.equal(batch.images, source.images)


def test_batches_stay_as_they_were(arrays: Dataset) -> None:
    """Memory is used again only when nobody holds it."""
    loader = Loader(arrays, "train", SPEC, LoaderConfig(batch_size=4, workers=2), EVERYTHING)
    held = collect(loader)
    copies = [batch.images.clone() for batch in held]
    views = [batch.images[1:2] for batch in collect(loader)]
    kept = [view.clone() for view in views]
    collect(loader)
    for batch, copy in zip(held, copies, strict=True):
        assert torch.equal(batch.images, copy)
    for view, copy in zip(views, kept, strict=True):
        assert torch.equal(view, copy)


def test_memory_is_used_again(arrays: Dataset) -> None:
    loader = Loader(arrays, "train", SPEC, LoaderConfig(batch_size=4, workers=0), Augment())
    places = {batch.images.data_ptr() for batch in loader}
    assert len(places) <= 3 < len(loader)


def test_soft_targets(arrays: Dataset) -> None:
    batch = collect(Loader(arrays, "train", SPEC, LoaderConfig(batch_size=46), EVERYTHING))[0]
    assert batch.targets.shape == (46, 2)
    assert torch.allclose(batch.targets.sum(1), torch.ones(46))


def test_grey_arrays_for_a_colour_model() -> None:
    digits = open_data("digits")
    batch = next(iter(Loader(digits, "train", SPEC, LoaderConfig(batch_size=8), Augment(crop="pad", policy="rand"))))
    assert batch.images.shape == (8, 3, 16, 16)


def test_float_kernel_in_evaluation(folder: Dataset) -> None:
    spec = replace(SPEC, kernel="float", antialias=False)
    batch = next(iter(Loader(folder, "val", spec, LoaderConfig(batch_size=4))))
    assert (batch.images * 127.5 + 127.5).frac().abs().max() > 0.1  # not rounded to bytes


def test_worker_threads_leave_torchs_own_alone(folder: Dataset) -> None:
    before = torch.get_num_threads()
    collect(Loader(folder, "train", SPEC, LoaderConfig(batch_size=4, workers=3), Augment()))
    assert torch.get_num_threads() == before
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(torch.get_num_threads).result() == before


def test_worker_threads_keep_to_one_core() -> None:
    torch.set_num_threads(2)
    try:
        pool = start_workers(1)
        pool.submit(torch.ones(100_000).exp).result()  # a first operation asks for the common number of threads
        assert pool.submit(torch.get_num_threads).result() == 1
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("config", "augment", "message"),
    [
        ({"batch_size": 3, "world_size": 2}, None, "multiple of the 2 ranks"),
        ({"rank": 2, "world_size": 2}, None, "rank must be between 0 and 1"),
        ({"batch_size": 47}, Augment(), "more than the 46 pictures"),
        ({"batch_size": 6, "world_size": 2}, Augment(mixup=1.0), "must be even"),
        ({"batch_size": 8, "output": "bytes"}, Augment(cutmix=1.0), "output='float'"),
        ({"batch_size": 8}, Augment(repeats=3), "multiple of repeats 3"),
        ({"workers": -1}, None, "workers= must be between 0 and 1024"),
        ({"max_broken_rate": 2.0}, None, "max_broken_rate= must be between 0 and 1"),
        pytest.param(
            {"pin_memory": True},
            None,
            "pin_memory needs a CUDA device",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is one"),
        ),
    ],
)
def test_settings_that_cannot_work(arrays: Dataset, config: dict, augment: Augment | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Loader(arrays, "train", SPEC, LoaderConfig(**config), augment)


def test_unknown_split_lists_the_others(arrays: Dataset) -> None:
    with pytest.raises(DataError, match=r"no split 'test'; got train \(46\), val \(46\)"):
        Loader(arrays, "test", SPEC)


def test_non_jpeg_and_turned_pictures(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "train" / name).mkdir(parents=True)
    left = np.zeros((20, 40, 3), dtype=np.uint8)
    left[:, :20] = 255  # white on the left
    Image.fromarray(left).save(tmp_path / "train/a/1.png")
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    Image.fromarray(left).save(tmp_path / "train/b/1.jpg", exif=exif)
    whole = Augment(crop="resized", scale=(1.0, 1.0), ratio=(2.0, 2.0), flip_rate=0.0)
    loader = Loader(open_data(tmp_path), "train", SPEC, LoaderConfig(batch_size=2, remainder="pad"), whole)
    images = {int(index): image for image, _, index in zip(*collect(loader)[0], strict=True)}
    assert images[0][:, :, 0].mean() > 0.9 > -0.9 > images[0][:, :, -1].mean()
    assert images[1][:, :, -1].mean() > 0.9 > -0.9 > images[1][:, :, 0].mean()


def test_memory_of_batches_that_were_all_held_is_given_back(arrays: Dataset) -> None:
    loader = Loader(arrays, "val", SPEC, LoaderConfig(batch_size=1, workers=0))
    tracemalloc.start()
    held = list(loader)
    del held
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 20 * 3 * 16 * 16 * 4  # of 46 batches


def test_bytes_are_rounded_and_not_cut(arrays: Dataset) -> None:
    """The kernel of the Google preset gives floats between two bytes."""
    spec = preset("google", 24)
    floats = collect(Loader(arrays, "val", spec, LoaderConfig(batch_size=46)))[0].images
    whole = collect(Loader(arrays, "val", spec, LoaderConfig(batch_size=46, output="bytes")))[0].images
    assert (normalize(whole, spec) - floats).abs().max() < 0.501 / 127.5  # half a level


@pytest.mark.parametrize(
    ("change", "message"),
    [({"repeats": 2}, "repeats was 1 and is now 2"), ({"flip_rate": 0.1}, None)],
)
def test_resume_refuses_another_order(arrays: Dataset, change: dict, message: str | None) -> None:
    config = LoaderConfig(batch_size=4)
    state = Loader(arrays, "train", SPEC, config, Augment()).state_dict()
    other = Loader(arrays, "train", SPEC, config, replace(Augment(), **change))
    if message is None:
        other.load_state_dict(state)
    else:
        with pytest.raises(ConfigError, match=message):
            other.load_state_dict(state)


def test_resume_refuses_other_pictures(folder: Dataset, arrays: Dataset) -> None:
    state = Loader(arrays, "train", SPEC, LoaderConfig(batch_size=4), Augment()).state_dict()
    with pytest.raises(ConfigError, match="data was"):
        Loader(folder, "train", SPEC, LoaderConfig(batch_size=4), Augment()).load_state_dict(state)
    with pytest.raises(ConfigError, match="not the state of a loader"):
        Loader(folder, "train", SPEC, LoaderConfig(batch_size=4), Augment()).load_state_dict({"epoch": 1})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Augment(crop="resize"), "Augment.crop must be one of none, pad, resized"),
        (lambda: Augment(policy="random"), "Augment.policy"),
        (lambda: Augment(pad=100_000), "pad= must be between"),
        (lambda: LoaderConfig(remainder="fill"), "LoaderConfig.remainder"),
        (lambda: LoaderConfig(on_broken="ignore"), "LoaderConfig.on_broken"),
        (lambda: LoaderConfig(world_size=0), "world_size must be at least 1"),
        (lambda: Preprocess(resize="shrotest"), "Preprocess.resize"),
    ],
)
def test_configs_that_cannot_be(make, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_under_inference_mode(folder: Dataset, workers: int) -> None:
    loader = Loader(folder, "train", SPEC, LoaderConfig(batch_size=4, workers=workers))
    with torch.inference_mode():
        inside = collect(loader)
    for a, b in zip(inside, collect(loader), strict=True):
        assert torch.equal(a.images, b.images)


def test_a_data_folder_may_be_a_text() -> None:
    assert DataConfig(data_dir="pictures").data_dir == Path("pictures")  # type: ignore[arg-type]


def test_fixed_views_take_turns() -> None:
    """Two versions of each picture: the epoch, and which repetition it is, decide which; numbered on request."""
    data, augment = open_data("digits"), Augment(crop="resized", views=2)
    spec = Preprocess(size=(8, 8), channels=1, mean=(0.5,), std=(0.5,))
    seen: dict[int, torch.Tensor] = {}
    for repeats, epochs in ((1, 3), (2, 1)):
        config = LoaderConfig(batch_size=64, number_versions=True)
        loader = Loader(data, "train", spec, config, replace(augment, repeats=repeats))
        for epoch in range(epochs):
            loader.set_epoch(epoch)
            for batch in loader:
                for view, image in zip(batch.indices.tolist(), batch.images, strict=True):
                    assert torch.equal(seen.setdefault(view, image.clone()), image)
    count = len(data.split("train"))
    assert {view // count for view in seen} == {0, 1}
    pairs = [(seen[view], seen[view + count]) for view in range(count) if {view, view + count} <= seen.keys()]
    assert sum(torch.equal(*pair) for pair in pairs) < len(pairs) / 10
    row = next(iter(seen))
    assert torch.equal(loader.view(row // count, np.array([row % count]))[0], seen[row])
