"""Export a model to ONNX with its preprocessing, then classify a picture with onnxruntime only.

python examples/export_and_run.py cifar10 model.onnx docs/images/ship.png
"""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image

import vitrail


def main(model: str, target: str, picture: str) -> None:
    export = vitrail.export(model, target, with_preprocess=True)  # nothing is written unless it agrees with torch
    print(f"wrote {target}; it agrees with torch: {export.agreement}")

    session = onnxruntime.InferenceSession(target)  # from here on, neither vitrail nor torch is needed
    classes = json.loads(session.get_modelmeta().custom_metadata_map["vitrail"])["facts"]["classes"]
    pixels = np.asarray(Image.open(picture).convert("RGB"))[None]  # (1, height, width, 3)
    scores = np.asarray(session.run(["probabilities"], {"images": pixels})[0])[0]
    print(f"{picture}: {classes[scores.argmax()]} ({scores.max():.1%})")


if __name__ == "__main__":
    main(*sys.argv[1:])
