"""What `vitrail.evaluate` returns: a model's scores on a data set."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitrail.data.source import Dataset
from vitrail.errors import InputError
from vitrail.evaluation.measurement import Measurement
from vitrail.evaluation.metrics import Metrics
from vitrail.evaluation.ood import OodScores
from vitrail.evaluation.output import predictions
from vitrail.evaluation.robustness import Robustness
from vitrail.prediction import Predictor
from vitrail.report.assembly import REPORT, ReportContext, show_evaluation, write_page


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluation:
    """A model measured on a split of a data set. A notebook shows its numbers and the confusion matrix."""

    model: str
    data: str
    split: str
    facts: dict[str, Any] = field(repr=False)  # what metrics.json holds
    measurement: Measurement | None = field(repr=False)  # every prediction; None if only features were measured
    robustness: Robustness | None = field(default=None, repr=False)  # accuracy under corruptions, if requested
    unfamiliar: OodScores | None = field(default=None, repr=False)  # how well others are told apart, if requested
    folder: Path | None = None
    written: tuple[Path, ...] = field(default=(), repr=False)  # the report first
    report_error: str = ""  # why the report could not be made; everything else is written
    class_order: tuple[str, ...] | None = field(default=None, repr=False)  # of the model's outputs, with `by_position`
    predictor: Predictor = field(repr=False)
    dataset: Dataset = field(repr=False)
    context: ReportContext = field(repr=False)  # what else the report shows

    @property
    def metrics(self) -> Metrics:
        """Accuracy, calibration, confusion and all other numbers."""
        return self._measured().metrics

    @property
    def probes(self) -> dict[str, Any]:
        """Probe → its accuracy on the split and what it chose."""
        return self.facts.get("probes", {})

    @property
    def predictions(self) -> list[dict[str, Any]]:
        """The rows of predictions.csv: the prediction for each picture, or why it could not be read."""
        return list(predictions(self._measured()))

    def report(self, path: str | Path = REPORT) -> Path:
        """Write the report page to this file."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        measured = (self._measured(), self.robustness, self.unfamiliar)
        return write_page(target, self.context, self.predictor, self.dataset, *measured)

    def _measured(self) -> Measurement:
        if self.measurement is None:
            raise InputError(
                f"{self.model} has no head for the classes of {self.data}, so only its features were measured: see "
                "`probes`."
            )
        return self.measurement

    def _repr_html_(self) -> str:
        return show_evaluation(f"{self.model} on {self.data}, {self.split}", self.measurement, self.facts)
