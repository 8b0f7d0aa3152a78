"""A service of models of every task: what it says about them, what it answers, and the page."""

import base64
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from playwright.sync_api import Page, expect
from tests.task_models import LABELS, THRESHOLDS, VALUES, write_model_of

import vitrail
from processes import SECONDS
from serving.browser import CHROMIUM
from serving.conftest import Running, encode
from vitrail.serving.openapi import SCHEMAS

PICTURE = encode(size=(48, 40), seed=3)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("served")
    for kind in ("several", "number"):
        write_model_of(kind, root)
    return root


@pytest.fixture(scope="module")
def service(models: Path) -> Generator[Running]:
    running = Running(f"several={models / 'several.safetensors'}", f"number={models / 'number.safetensors'}")
    yield running
    assert running.end() == 143


@pytest.fixture(scope="module")
def asked(service: Running) -> Generator[httpx.Client]:
    with httpx.Client(base_url=service.url, timeout=SECONDS) as client:
        yield client


def check(answer: httpx.Response, schema: str) -> Any:
    assert answer.status_code == 200, answer.text
    jsonschema.validate(answer.json(), {"$ref": f"#/components/schemas/{schema}", "components": {"schemas": SCHEMAS}})
    return answer.json()


def test_what_it_says_about_them(asked: httpx.Client, service: Running) -> None:
    said = "".join(service.said)
    assert "several: 4 labels on torch" in said
    assert "number: 2 values on torch" in said
    described = check(asked.get("/v1/models"), "Models")["models"]
    assert [(each["name"], each["task"], each["highest_coverage"]) for each in described] == [
        ("several", "several", 0.9),
        ("number", "number", 0.9),
    ]
    listed = [check(asked.get("/v1/labels", params={"model": name}), "Labels") for name in ("several", "number")]
    assert [(each["labels"], each["thresholds"]) for each in listed] == [
        (list(LABELS), list(THRESHOLDS)),
        (list(VALUES), None),
    ]


def test_it_answers_as_the_library_does(asked: httpx.Client, models: Path) -> None:
    for kind in ("several", "number"):
        answer = check(
            asked.post("/v1/predict", params={"model": kind, "coverage": 0.9}, content=PICTURE), "Predictions"
        )
        (row,) = answer["predictions"]
        expected = vitrail.load(models / f"{kind}.safetensors").predict(PICTURE, coverage=0.9)
        assert tuple(each["label"] for each in row["labels"]) == expected.labels
        assert [each["score"] for each in row["labels"]] == pytest.approx(expected.scores)
        assert row["label_set"] == (None if expected.label_set is None else list(expected.label_set))
        assert row["values"] == pytest.approx(expected.values)
        if kind == "number":
            assert row["intervals"] == [pytest.approx(pair) for pair in expected.intervals or ()]
        else:
            assert row["intervals"] is None
    refused = asked.post("/v1/predict", params={"model": "number", "top_k": 1}, content=PICTURE)
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "invalid_argument")


def test_open_inference_gives_what_each_task_has(asked: httpx.Client, models: Path) -> None:
    for kind, names in (("several", ["logits", "probabilities", "label"]), ("number", ["values"])):
        assert [each["name"] for each in check(asked.get(f"/v2/models/{kind}"), "Model")["outputs"]] == names
        tensor = {"name": "picture", "datatype": "BYTES", "shape": [1], "data": [base64.b64encode(PICTURE).decode()]}
        answer = check(asked.post(f"/v2/models/{kind}/infer", json={"inputs": [tensor]}), "Inferred")
        outputs = {each["name"]: each for each in answer["outputs"]}
        assert list(outputs) == names
        expected = vitrail.load(models / f"{kind}.safetensors").predict(PICTURE)
        if kind == "several":
            assert outputs["label"]["data"] == [" | ".join(expected.labels)]
        else:
            assert outputs["values"]["data"] == pytest.approx(expected.values, rel=1e-5)
            wrong = {"inputs": [tensor], "outputs": [{"name": "label"}]}
            refused = asked.post("/v2/models/number/infer", json=wrong)
            assert refused.status_code == 422
            assert "no output label, only values" in refused.json()["error"]


def test_one_label_or_value_is_explained(asked: httpx.Client) -> None:
    for kind, name in (("several", "sand"), ("number", "height")):
        parameters = {"model": kind, "format": "json", "target": name, "method": "occlusion"}
        answer = check(asked.post("/v1/explain", params=parameters, content=PICTURE), "Explained")
        assert answer["target"]["label"] == name
        assert bool(answer["values"]) == (kind == "number")
        if kind == "number":
            assert answer["target"]["score"] == pytest.approx(answer["values"][1])


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome on the PATH")
def test_the_page_shows_labels_with_their_thresholds_and_values_with_their_intervals(
    visit: Callable[..., Any], service: Running, models: Path
) -> None:
    labels, values = (
        vitrail.load(models / f"{kind}.safetensors").predict(PICTURE, coverage=0.9) for kind in ("several", "number")
    )

    def script(page: Page) -> None:
        page.set_input_files("#file", {"name": "noise.png", "mimeType": "image/png", "buffer": PICTURE})
        expect(page.locator(".answer")).to_have_text(", ".join(labels.labels))
        expect(page.locator(".bars .bar")).to_have_count(len(labels.labels))
        lefts = page.locator(".threshold").evaluate_all("marks => marks.map((mark) => parseFloat(mark.style.left))")
        assert lefts == pytest.approx([100 * THRESHOLDS[LABELS.index(label)] for label in labels.labels])
        expect(page.locator("#known")).to_contain_text("knows 4 labels: sky, sea, sand, ship.")
        page.select_option("select.model", "number")
        assert values.intervals is not None
        low, high = values.intervals[1]
        expect(page.locator(".bars .bar .interval").nth(1)).to_have_text(f"{low:.4g} to {high:.4g}")
        expect(page.locator(".answer")).to_contain_text(f"height {values.values[1]:.4g}")
        expect(page.locator("#snippet")).to_contain_text("# the values")
        page.locator(".bars .bar").nth(1).click()
        expect(page.locator(".caption")).to_contain_text("The value rests on the bright parts: height")
        expect(page.locator(".bars .bar").nth(1)).to_have_attribute("aria-pressed", "true")

    visit(script, service.url)
