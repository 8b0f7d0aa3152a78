"""The other ways to serve a model that `benchmarks.serving` measures.

    python -m benchmarks.serving_peers KIND PORT MODEL

KIND is fastapi or litserve. MODEL is a folder of transformers, which is served with transformers as its users write it,
or a checkpoint of ours that transformers cannot hold, which is served with vitrail's own Predictor inside.
"""

import io
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import litserve
import torch
from PIL import Image

TOP_K = 5
MAX_BATCH, BATCH_TIMEOUT = 8, 0.01  # of LitServe

Answer = dict[str, list[dict[str, Any]]]
Classify = Callable[[Sequence[bytes]], list[Answer]]


def open_model(source: str) -> Classify:
    """Encoded pictures → the best five classes of each, in one batch."""
    return open_transformers(source) if Path(source).is_dir() else open_vitrail(source)


def open_transformers(folder: str) -> Classify:
    from benchmarks.peers import transformers

    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    model = transformers.ViTForImageClassification.from_pretrained(folder).eval()
    names = model.config.id2label

    def classify(files: Sequence[bytes]) -> list[Answer]:
        images = [Image.open(io.BytesIO(file)).convert("RGB") for file in files]
        with torch.inference_mode():
            logits = model(**processor(images=images, return_tensors="pt")).logits
        scores, places = logits.softmax(dim=-1).topk(TOP_K)
        return [describe(row, places[index].tolist(), names) for index, row in enumerate(scores.tolist())]

    return classify


def open_vitrail(source: str) -> Classify:
    import vitrail

    model = vitrail.load(source)
    names = {index: model.label(index) for index in range(model.num_classes)}

    def classify(files: Sequence[bytes]) -> list[Answer]:
        rows: Any = model.predict(list(files), top_k=TOP_K)
        return [describe(row.scores, row.indices, names) for row in rows]

    return classify


def describe(scores: Sequence[float], places: Sequence[int], names: Any) -> Answer:
    rows = zip(places, scores, strict=True)
    return {"labels": [{"label": names[place], "index": place, "score": score} for place, score in rows]}


def serve_fastapi(classify: Classify, port: int) -> None:
    """A plain handler, which FastAPI runs in its pool of threads."""
    import uvicorn
    from fastapi import FastAPI, UploadFile

    app = FastAPI()

    @app.post("/predict")
    def predict(file: UploadFile) -> Any:  # pyright: ignore[reportUnusedFunction]
        return classify([file.file.read()])[0]

    uvicorn.run(app, port=port, log_level="warning", access_log=False)


class Api(litserve.LitAPI):
    """LitServe, which gathers requests into batches for one worker process."""

    def __init__(self, source: str) -> None:
        super().__init__(max_batch_size=MAX_BATCH, batch_timeout=BATCH_TIMEOUT)
        self.source = source

    def setup(self, device: str) -> None:
        self.classify = open_model(self.source)

    def decode_request(self, request, **_):  # without types, which LitServe would take for the schema of a request
        return request["file"].file.read()

    def predict(self, x: Sequence[bytes], **_: Any) -> list[Answer]:
        return self.classify(x)

    def encode_response(self, output, **_):
        return output


def serve_litserve(source: str, port: int) -> None:
    server = litserve.LitServer(Api(source), accelerator="cpu", devices=1, workers_per_device=1, timeout=60)
    server.run(host="127.0.0.1", port=port, log_level="warning", generate_client_file=False)


def main() -> None:
    kind, port, source = sys.argv[1:]
    if kind == "fastapi":
        serve_fastapi(open_model(source), int(port))
    else:
        serve_litserve(source, int(port))


if __name__ == "__main__":
    main()
