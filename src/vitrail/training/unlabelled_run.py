"""A run without labels, from its setup to the result: the loop, its curves, and a sheet of reconstructions."""

from pathlib import Path

import torch
from PIL import Image

from vitrail.data.sheet import SheetRow, Tile, draw_sheet
from vitrail.data.transform import denormalize, to_pil
from vitrail.files import atomic_path
from vitrail.prediction import Predictor, load
from vitrail.ranks import Ranks
from vitrail.training.best_weights import BEST
from vitrail.training.gradients import first_of
from vitrail.training.listener import Listener
from vitrail.training.loop import Trainer
from vitrail.training.masked import build_decoder, draw_patches, hide_pixels, reconstruct
from vitrail.training.result import Run
from vitrail.training.run import draw_results, scores_of, whiten_once, write_metrics
from vitrail.training.run_folder import ELASTIC
from vitrail.training.setup import Setup, plain_loader
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.native import read_native

RECONSTRUCTIONS = "reconstructions.jpg"
SHOWN = 8  # pictures of the sheet


def carry_out_pretraining(
    setup: Setup, ranks: Ranks, folder: Path, listener: Listener, *, resume: bool
) -> tuple[Run, Predictor]:
    """Learn to the end, and show what the model makes of hidden patches; the encoder is returned for the report."""
    if setup.config.start.whiten != "off":
        whiten_once(setup, ranks, folder, listener)
    trainer = Trainer(setup, ranks, folder, listener)
    if resume:
        trainer.resume()
    state = trainer.run()
    run = Run(
        folder=folder,
        epochs=state.epoch,
        best_epoch=state.best_epoch,
        seconds=state.seconds,
        val=scores_of(setup, state),
        test=None,
        shown=trainer.objective.shown,
        method=setup.config.pretraining.method,
        kept_last=trainer.objective.choice.keeps_last,
    )
    if ranks.is_first:
        draw_results(trainer)
        sheet = reconstruction_sheet(read_native(folder / BEST), setup)
        with atomic_path(folder / RECONSTRUCTIONS) as draft:
            sheet.save(draft, quality=92)
        write_metrics(run)
        (folder / ELASTIC).unlink(missing_ok=True)
    ranks.wait()
    return run, load(folder, device=ranks.device)


def reconstruction_sheet(checkpoint: Checkpoint, setup: Setup) -> Image.Image:
    """Some held-out pictures: as they are, what the model sees of them, and what it makes of the rest."""
    settings, split = setup.config.pretraining, "val" if setup.has_validation else "train"
    model = checkpoint.build().eval()
    decoder = build_decoder(checkpoint.config, settings, checkpoint.extras, 0).eval()
    batch = first_of(next(iter(plain_loader(setup, split, Ranks(), SHOWN))), SHOWN)
    grid, stride = model.embed.grid_of(batch.images), model.config.stride
    visible, hidden = draw_patches(batch.indices, grid, settings.mask_rate, setup.config.machine.seed)
    with torch.no_grad():
        predicted = reconstruct(model, decoder, batch.images, visible, hidden, settings.pixels)
    shown = visible.shape[1] / (visible.shape[1] + hidden.shape[1])
    how = ", given the mean and deviation of patches" if settings.pixels == "normalized" else ""
    titles = {
        f"{split} pictures": batch.images,
        f"what the model sees: {shown:.0%} of the patches": hide_pixels(batch.images, hidden, grid, stride),
        f"what it predicts{how}": predicted,
    }
    rows = [
        SheetRow(title, [Tile(to_pil(image)) for image in denormalize(images, setup.preprocess)])
        for title, images in titles.items()
    ]
    return draw_sheet(f"{setup.dataset.name}: reconstructions", rows, smooth=False)
