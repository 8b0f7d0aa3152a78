"""The best weights of a run so far, as a model for use: `weights/best.safetensors`, and what an objective adds."""

from pathlib import Path

from vitrail.ranks import Ranks
from vitrail.training.building import Setup
from vitrail.training.listener import Listener
from vitrail.training.objectives import Objective
from vitrail.training.parallel import whole
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.facts import Origin
from vitrail.weights.native import save_checkpoint
from vitrail.weights.proof import Agreement

SAME = 1e-5  # of the largest logit: what rounding makes of merged weights


class BestWeights:
    """Writes the model as it is now, whenever it is the best so far."""

    def __init__(self, setup: Setup, objective: Objective, ranks: Ranks, folder: Path, listener: Listener) -> None:
        self.setup, self.objective, self.ranks, self.listener = setup, objective, ranks, listener
        self.folder = folder / "weights"
        self._proven = False  # that the written model computes what the trained one does

    def save(self) -> None:
        """Write one self-describing file; all ranks must call it."""
        setup = self.setup
        tensors = {name: whole(tensor).detach().cpu() for name, tensor in setup.model.state_dict().items()}
        finished = Checkpoint(
            config=setup.model.config,
            tensors=self.objective.plain(tensors),
            preprocess=setup.preprocess,
            classes=setup.dataset.classes,
            origin=Origin(source=setup.source or f"trained on {setup.dataset.name} with {setup.config.recipe}"),
        )
        self._report(self.objective.prove(finished))

        def write() -> None:
            self.objective.write_beside(self.folder, tensors)
            save_checkpoint(finished, self.folder / "best.safetensors")

        self.ranks.from_first(write)

    def _report(self, agreement: Agreement | None) -> None:
        """Report once that the written model computes what the trained one does; and whenever it does not."""
        if agreement is None or (self._proven and agreement.relative <= SAME):
            return
        self._proven = agreement.relative <= SAME
        difference = f"differ by up to {agreement.relative:.0e} of the largest"
        self.listener.said(
            f"the adapters are merged into best.safetensors; {agreement.what} with and without merging {difference}"
            + ("" if self._proven else ": more than rounding explains, so evaluate the merged model itself")
        )
