"""vitrail: one tool for the whole life of a Vision Transformer.

Every verb of the command is a function here, with the same defaults, checks and results. The public names load what
they need when first used, so that `import vitrail` (and `vitrail --help`) stays light.
"""

import os
from typing import TYPE_CHECKING

from vitrail.lazy import lazy_names
from vitrail.machine import avoid_unusable_amx

if TYPE_CHECKING:
    from vitrail.errors import AssumptionWarning as AssumptionWarning
    from vitrail.errors import VitrailError as VitrailError
    from vitrail.model import ViT as ViT
    from vitrail.model import ViTConfig as ViTConfig
    from vitrail.model import create as create
    from vitrail.model import variants as variants
    from vitrail.prediction import Predictor as Predictor
    from vitrail.prediction import load as load
    from vitrail.training.config import TrainConfig as TrainConfig
    from vitrail.training.recipes import recipe as recipe
    from vitrail.training.result import Run as Run
    from vitrail.verbs.average import average as average
    from vitrail.verbs.benchmark import benchmark as benchmark
    from vitrail.verbs.calibrate import calibrate as calibrate
    from vitrail.verbs.convert import convert as convert
    from vitrail.verbs.data import check_data as check_data
    from vitrail.verbs.data import open_data as open_data
    from vitrail.verbs.data import shard_data as shard_data
    from vitrail.verbs.data import show_data as show_data
    from vitrail.verbs.data_audit import audit_data as audit_data
    from vitrail.verbs.diff import diff as diff
    from vitrail.verbs.doctor import doctor as doctor
    from vitrail.verbs.embed import embed as embed
    from vitrail.verbs.estimators import Classifier as Classifier
    from vitrail.verbs.estimators import Regressor as Regressor
    from vitrail.verbs.evaluate import evaluate as evaluate
    from vitrail.verbs.explain import explain as explain
    from vitrail.verbs.explain import figures as figures
    from vitrail.verbs.export import export as export
    from vitrail.verbs.inspect import inspect as inspect
    from vitrail.verbs.inspect import summary as summary
    from vitrail.verbs.models import models as models
    from vitrail.verbs.predict import predict as predict
    from vitrail.verbs.pretrain import pretrain as pretrain
    from vitrail.verbs.push import push as push
    from vitrail.verbs.run_job import run_job as run_job
    from vitrail.verbs.scores import Evaluation as Evaluation
    from vitrail.verbs.search import search as search
    from vitrail.verbs.serve import serve as serve
    from vitrail.verbs.train import demo as demo
    from vitrail.verbs.train import plan as plan
    from vitrail.verbs.train import resume as resume
    from vitrail.verbs.train import train as train
    from vitrail.weights.hints import Hints as Hints

__version__ = "0.1.0"

# These libraries report their use, or their errors, to their makers unless this is set when they are imported.
# OpenVINO asks in Python: `runtimes/openvino_runtime.py`.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")

avoid_unusable_amx()  # oneDNN asks once, when torch or OpenVINO first compute: later would be too late

__getattr__, __dir__, __all__ = lazy_names(__name__)
