"""The page in a real browser, against a real service on this machine."""

import io
import os
import re
import shutil
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Page, Route, expect

import vitrail
from fuzzing import in_fuzz_only
from serving.browser import CHROMIUM, FRAME, Held
from serving.conftest import Running, encode
from vitrail.data.preprocess import Preprocess
from vitrail.explanation import open_subject
from vitrail.explanation.heatmap import scale_map
from vitrail.explanation.raw_attention import patch_attention
from vitrail.prediction import Predictor
from vitrail.runtimes.torch_runtime import TorchRuntime

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome on the PATH")
EXAMPLES = Path(vitrail.__file__).parent / "serving" / "examples"
SHIP = EXAMPLES / "ship.jpg"
TOKEN = "a-token-for-tests"
Visit = Callable[..., Any]


@pytest.fixture(scope="session")
def model() -> Any:
    return vitrail.load()


def take_example(page: Page, name: str = "ship.jpg", panes: int = 1) -> None:
    page.click(f"[data-example='{name}']")
    expect(page.locator(".frame.explained")).to_have_count(panes)
    expect(page.locator("[aria-busy], .working")).to_have_count(0)


def colours_of(page: Page, grid: int = 8) -> list[list[int]]:
    """The overlay's red, green, blue and opacity in the middle of each patch."""
    read = """(canvas, grid) => {
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      const middle = (index, side) => Math.floor((index + 0.5) / grid * side);
      return Array.from({ length: grid * grid }, (_, patch) => {
        const row = middle(Math.floor(patch / grid), canvas.height);
        const at = 4 * (row * canvas.width + middle(patch % grid, canvas.width));
        return Array.from(data.slice(at, at + 4));
      });
    }"""
    return page.locator("canvas.overlay").first.evaluate(read, grid)


def inferno(value: float) -> list[int]:
    return [round(255 * part) for part in matplotlib.colormaps["inferno"](value)[:3]]


def test_an_example_gets_its_labels_and_its_map(visit: Visit, model: Any) -> None:
    def script(page: Page) -> None:
        take_example(page)
        expect(page.locator(".answer")).to_have_text("ship")
        assert page.locator(".bar-label").all_inner_texts() == list(predicted.labels)
        assert page.locator(".share").all_inner_texts() == [f"{100 * score:.1f} %" for score in predicted.scores]
        facts = page.inner_text(".facts")
        assert re.search(r"Answered in\s+[\d.]+ ms", facts)
        assert re.search(r"Model\s+cifar10\s+Version\s+[0-9a-f]{12}", facts)
        assert page.locator(".bar[aria-pressed=true]").inner_text().startswith("ship")
        assert "ship 99.9 %" in page.inner_text("#announcer")
        expected = [inferno(share) for share in scale_map(why.map).flatten().tolist()]
        difference = np.abs(np.array(colours_of(page))[:, :3] - expected)
        assert difference.max() <= 12  # the middle of a patch may be half a pixel aside
        before = page.inner_text(".caption")
        page.click(".bars li:nth-child(2) button")
        expect(page.locator(".bar[aria-pressed=true]")).to_contain_text(predicted.labels[1])
        expect(page.locator(".caption")).not_to_have_text(before)

    predicted: Any = model.predict(SHIP)
    why: Any = vitrail.explain(model, SHIP, method="relevance")
    visit(script)


SHIP_FILE = {"name": "ship.jpg", "mimeType": "image/jpeg", "buffer": SHIP.read_bytes()}
CAT_FILE = {"name": "cat.jpg", "mimeType": "image/jpeg", "buffer": (EXAMPLES / "cat.jpg").read_bytes()}


def test_whoever_is_quicker_than_the_connection_gets_one_pane(visit: Visit) -> None:
    def script(page: Page) -> None:
        held = Held(page, "/v1/models")
        page.reload()
        held.wait(1)
        expect(page.locator("#compare")).to_be_disabled()
        for picture in (CAT_FILE, SHIP_FILE, SHIP_FILE):
            page.set_input_files("#file", picture)
        held.routes[0].abort()
        page.locator("text=Try again").dblclick()
        held.wait(2)
        page.set_input_files("#file", SHIP_FILE)
        page.evaluate(FRAME)
        assert len(held.routes) == 2
        held.give(1)
        expect(page.locator(".answer")).to_have_text("ship")
        expect(page.locator("#problem")).to_be_hidden()
        expect(page.locator(".pane")).to_have_count(1)
        page.dblclick("#compare")
        expect(page.locator(".pane")).to_have_count(1)

    visit(script, expected="ERR_FAILED")


def test_the_picture_that_was_chosen_last_is_shown(visit: Visit) -> None:
    """Whichever answer comes first; nobody waits for the others any more."""

    def script(page: Page) -> None:
        withdrawn: list[str] = []
        page.on("requestfailed", lambda request: withdrawn.append(f"{request.url} {request.failure}"))
        examples, predictions = Held(page, r"/examples/\w+\.jpg$"), Held(page, "/v1/predict")
        for name in ("ship.jpg", "cat.jpg"):
            page.click(f"[data-example='{name}']")
        examples.wait(2)
        examples.give(1)
        predictions.wait(1)
        page.set_input_files("#file", SHIP_FILE)
        predictions.wait(2)
        predictions.give(1, 0)
        examples.give(0)
        expect(page.locator(".frame.explained")).to_be_visible()
        expect(page.locator(".answer")).to_have_text("ship")
        expect(page.locator(".pane-name")).to_have_text("ship.jpg")
        assert [re.sub(r".*/(\w+)\S*", r"\1", each) for each in withdrawn] == [
            *("ship net::ERR_ABORTED", "predict net::ERR_ABORTED")
        ]

    visit(script)


def test_a_picture_goes_to_the_side_that_was_chosen_with_it(visit: Visit) -> None:
    def script(page: Page) -> None:
        page.click("#compare")
        expect(page.get_by_role("radio", name="left")).to_be_checked()  # where the first picture belongs
        held = Held(page, r"/examples/\w+\.jpg$")
        page.click("[data-example='ship.jpg']")
        page.check("input[name=side][value='1']")
        page.click("[data-example='cat.jpg']")
        held.wait(2)
        held.give(1, 0)
        expect(page.locator(".frame.explained")).to_have_count(2)
        assert page.locator(".answer").all_inner_texts() == ["ship", "cat"]
        page.set_input_files("#file", SHIP_FILE)  # to the right, which is still chosen
        expect(page.locator(".answer")).to_have_text(["ship", "ship"])
        page.locator("html").evaluate(HAND_OVER, ["drop", b64encode(CAT_FILE["buffer"]).decode(), 3])
        expect(page.locator("#problem")).to_contain_text("Of 3 pictures, the first two are shown.")
        expect(page.locator(".answer")).to_have_text(["cat", "cat"])

    visit(script)


def test_a_map_that_is_no_longer_asked_for_is_not_shown(visit: Visit) -> None:
    def script(page: Page) -> None:
        take_example(page)
        maps, attention = Held(page, "/v1/explain"), Held(page, "/v1/attention")
        for method in ("rollout", "occlusion", "rollout"):
            page.select_option("#method", method)
        maps.wait(3)
        maps.give(2, 1, 0)
        expect(page.locator(".working")).to_have_count(0)
        expect(page.locator(".caption")).to_contain_text("(rollout)")
        page.select_option("#method", "attention")
        box = page.locator(".patches").bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        attention.wait(1)
        page.select_option("#layer", "0")
        maps.wait(5)
        attention.wait(2)
        attention.give(1, 0)
        maps.give(4, 3)  # a late map does not take the caption from the patch
        expect(page.locator(".working")).to_have_count(0)
        expect(page.locator(".caption")).to_contain_text("(layer 0, mean of 4 heads)")

    visit(script)


def test_a_transparent_picture_is_scored_as_it_is_shown(visit: Visit, model: Any) -> None:
    def script(page: Page) -> None:
        page.set_input_files("#file", {"name": "cut out.png", "mimeType": "image/png", "buffer": encoded(hidden)})
        expect(page.locator(".caption")).to_contain_text("What is transparent was laid on white, for the model too.")
        assert page.locator(".share").all_inner_texts() == [f"{100 * score:.1f} %" for score in expected.scores]
        corner = "canvas => Array.from(canvas.getContext('2d').getImageData(0, 0, 1, 1).data)"
        assert page.locator("canvas.picture").evaluate(corner) == [255, 255, 255, 255]
        expect(page.locator("#snippet")).to_contain_text("image/png")

    hidden = Image.open(SHIP).resize((64, 64)).convert("RGBA")
    mask = Image.new("L", hidden.size, 0)
    mask.paste(255, (16, 16, 48, 48))
    hidden.putalpha(mask)
    expected: Any = model.predict(Image.alpha_composite(Image.new("RGBA", hidden.size, "white"), hidden).convert("RGB"))
    assert expected.scores != model.predict(encoded(hidden)).scores
    visit(script)


def encoded(picture: Image.Image) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, "PNG")
    return stream.getvalue()


def test_the_page_says_what_the_model_knows(visit: Visit) -> None:
    def script(page: Page) -> None:
        def name_others(route: Route) -> None:
            labels = ["goldfish", "Cat", *(f"breed {number}" for number in range(998))]
            route.fulfill(json={**route.fetch().json(), "labels": labels})

        def count_others(route: Route) -> None:
            (described,) = route.fetch().json()["models"]
            route.fulfill(json={"models": [{**described, "classes": 1000}]})

        names = "airplane, automobile, bird, cat, deer, dog, frog, horse, ship, truck"
        expect(page.locator("#known")).to_have_text(f"cifar10 knows 10 classes: {names}.")
        page.route(re.compile("/v1/labels"), name_others)
        page.route(re.compile("/v1/models"), count_others)
        page.reload()
        expect(page.locator("#known summary")).to_contain_text("cifar10 knows 1,000 classes, such as goldfish, Cat, ")
        expect(page.locator("[data-example]:visible")).to_have_attribute("data-example", "cat.jpg")
        page.click("#known summary")
        expect(page.locator("#known details p")).to_contain_text("breed 997")

    visit(script)


def test_the_page_shows_every_example(visit: Visit) -> None:
    def script(page: Page) -> list[str]:
        expect(page.locator("#examples")).to_be_visible()
        sizes = page.locator("#examples img").evaluate_all("images => images.map((image) => image.naturalWidth)")
        assert set(sizes) == {256}
        return page.locator("[data-example]").evaluate_all("all => all.map((button) => button.dataset.example)")

    assert visit(script) == sorted(path.name for path in EXAMPLES.iterdir())


HAND_OVER = """async (page, [kind, bytes, count = 1]) => {
  const files = new DataTransfer();
  const data = Uint8Array.from(atob(bytes), (c) => c.charCodeAt(0));
  for (let i = 0; i < count; i++) files.items.add(new File([data], `${kind}.png`, {type: "image/png"}));
  const options = {bubbles: true, cancelable: true};
  document.querySelector("main").dispatchEvent(kind === "drop"
    ? new DragEvent("drop", {...options, dataTransfer: files})
    : new ClipboardEvent("paste", {...options, clipboardData: files}));
}"""


def test_pictures_are_chosen_dropped_and_pasted(visit: Visit) -> None:
    def script(page: Page) -> None:
        page.set_input_files("#file", {"name": "tall one.png", "mimeType": "image/png", "buffer": tall})
        expect(page.locator(".pane-name")).to_have_text("tall one.png")
        expect(page.locator(".caption")).to_contain_text("The model does not see the striped part.")
        size = page.locator("canvas.picture").evaluate("canvas => canvas.width / canvas.height")
        assert size == pytest.approx(30 / 90, abs=0.01)
        assert page.locator("canvas.picture").get_attribute("aria-label") == "The picture tall one.png"
        for kind in ("drop", "paste"):
            page.locator("html").evaluate(HAND_OVER, [kind, b64encode(encode(seed=3)).decode()])
            expect(page.locator(".pane-name")).to_have_text(f"{kind}.png")
            expect(page.locator(".bar")).to_have_count(5)
        expect(page.locator("#snippet")).to_contain_text("@paste.png")

    tall = encode("PNG", (30, 90))
    visit(script)


def test_the_controls_change_the_overlay(visit: Visit) -> None:
    def script(page: Page) -> None:
        take_example(page)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        for method in ("attention", "rollout", "gradient-rollout", "relevance", "occlusion"):
            page.select_option("#method", method)
            expect(page.locator(".caption")).to_contain_text(f"({method})")
            disabled = [not page.locator(name).is_enabled() for name in ("#layer", "#head")]
            assert disabled == [method != "attention"] * 2  # only attention has them
        page.select_option("#method", "attention")
        page.select_option("#layer", "0")
        expect(page.locator(".working")).to_have_count(0)
        page.select_option("#head", "2")
        expect(page.locator(".working")).to_have_count(0)
        assert re.search(r"/v1/explain\?format=json&method=attention&model=cifar10&layer=0&head=2$", asked[-1])
        count = len(asked)
        page.select_option("#head", "")
        expect(page.locator(".working")).to_have_count(0)
        assert len(asked) == count  # what is known is not asked for again
        page.locator("#opacity").fill("25")
        expect(page.locator("canvas.overlay")).to_have_css("opacity", "0.25")
        expect(page.locator("#opacity-value")).to_have_text("25 %")

    visit(script)


def brightest(model: Any, patch: int, **choice: Any) -> int:
    """The patch that a patch of the ship attends to most, by the library."""
    image = open_subject(SHIP, model.preprocess).image
    return int(patch_attention(model.model, image[None], **choice).patches[0, patch].argmax())


def named(patch: int) -> str:
    return f"row {patch // 8 + 1}, column {patch % 8 + 1}"


def test_a_patch_under_the_pointer_shows_what_it_attends_to(visit: Visit, model: Any) -> None:
    def script(page: Page) -> None:
        take_example(page)
        box = page.locator(".patches").bounding_box()
        assert box is not None
        patch = 3 * 8 + 4
        page.mouse.move(box["x"] + 4.5 / 8 * box["width"], box["y"] + 3.5 / 8 * box["height"])
        expect(page.locator(".caption")).to_contain_text(f"{named(patch)} attends most to")
        assert f"to {named(brightest(model, patch))} (layer 2, mean of 4 heads)" in page.inner_text(".caption")
        np.testing.assert_allclose(colours_of(page)[brightest(model, patch)], [*inferno(1.0), 255], atol=2)
        mark = page.locator(".mark").bounding_box()
        assert mark is not None
        assert mark["x"] - box["x"] == pytest.approx(box["width"] / 2, abs=1)
        assert mark["width"] == pytest.approx(box["width"] / 8, abs=1)
        page.mouse.move(2, 2)
        expect(page.locator(".caption")).to_contain_text("(relevance)")
        expect(page.locator(".mark")).to_be_hidden()
        page.select_option("#method", "attention")
        page.select_option("#layer", "0")
        page.select_option("#head", "1")
        page.mouse.move(box["x"] + 0.5 / 8 * box["width"], box["y"] + 0.5 / 8 * box["height"])
        expect(page.locator(".caption")).to_contain_text("(layer 0, head 1)")
        best = brightest(model, 0, layer=0, head=1)
        assert f"to {'itself' if best == 0 else named(best)} (" in page.inner_text(".caption")

    visit(script)


def test_everything_can_be_reached_by_keyboard(visit: Visit, model: Any) -> None:
    def tab_to(page: Page, selector: str) -> None:
        for _ in range(40):
            page.keyboard.press("Tab")
            if page.locator(f"{selector}:focus").count():
                assert page.locator(selector).evaluate("element => getComputedStyle(element).outlineStyle") == "solid"
                return
        raise AssertionError(f"{selector} cannot be reached")

    def script(page: Page) -> None:
        expect(page.locator("#served")).to_contain_text("cifar10")
        tab_to(page, "[data-example='ship.jpg']")
        page.keyboard.press("Enter")
        expect(page.locator(".frame.explained")).to_be_visible()
        expect(page.locator("#announcer")).to_contain_text("ship.jpg, cifar10: ship 99.9 %")
        tab_to(page, "#method")
        tab_to(page, ".patches")
        middle = 4 * 8 + 4
        expect(page.locator("#announcer")).to_contain_text(f"The patch in {named(middle)} attends")
        for key in ("ArrowUp", "ArrowLeft"):
            page.keyboard.press(key)
        patch = middle - 8 - 1
        expect(page.locator("#announcer")).to_contain_text(
            f"The patch in {named(patch)} attends most to {named(brightest(model, patch))}"
        )
        for _ in range(10):
            page.keyboard.press("ArrowDown")
        expect(page.locator(".caption")).to_contain_text("row 8, column 4")
        page.keyboard.press("Escape")
        expect(page.locator(".caption")).to_contain_text("(relevance)")
        tab_to(page, ".bars li:nth-child(3) button")
        page.keyboard.press("Enter")
        expect(page.locator(".bars li:nth-child(3) button")).to_have_attribute("aria-pressed", "true")
        tab_to(page, "#tab-curl")
        page.keyboard.press("ArrowRight")
        expect(page.locator("#snippet")).to_contain_text("urlopen")

    visit(script)


def test_everything_has_a_name_for_screen_readers(visit: Visit) -> None:
    def script(page: Page) -> str:
        take_example(page)
        page.click("#compare")
        return page.locator("body").aria_snapshot()

    tree = visit(script)
    roles = "button|combobox|slider|radio|tab|application|img|group|region|dialog|textbox|form"
    assert re.findall(rf"- (?:{roles})(?: \[[^\]]*\])*:?$", tree, re.MULTILINE) == []
    for part in ('button "Choose a picture"', 'combobox "Explained by"', 'slider "Opacity"', 'application "Patches of'):
        assert part in tree


OTHERS = {
    b"\0\0\0\x18ftypheic": "IMG_1 is a HEIC picture, which is not accepted. Save it as JPEG first; an iPhone takes "
    "JPEG photos if Settings > Camera > Formats is set to Most Compatible.",
    b"%PDF-1.7": "IMG_1 is a PDF document, not a picture. Export the page that you mean as PNG or JPEG, or take a "
    "screenshot of it.",
    b'<?xml version="1.0"?><svg ': "IMG_1 is an SVG drawing, which has no pixels. Export it as PNG.",
    b"GIF89a": "IMG_1 is a GIF picture, which is not accepted. Save it as JPEG, PNG or WebP first.",
    b"hello": "IMG_1 is not a JPEG, PNG or WebP. Send a JPEG, PNG or WebP file.",
}


def test_errors_are_told_in_words(visit: Visit) -> None:
    def script(page: Page) -> None:
        broken = {"name": "broken.jpg", "mimeType": "image/jpeg", "buffer": SHIP.read_bytes()[:100]}
        page.set_input_files("#file", broken)
        expect(page.locator(".pane .problem")).to_contain_text("broken.jpg is a JPEG without a readable size")
        expect(page.locator(".pane .problem")).to_contain_text("Send a complete JPEG, PNG or WebP file.")
        expect(page.locator(".frame")).to_be_hidden()
        cut = {"name": "cut.jpg", "mimeType": "image/jpeg", "buffer": SHIP.read_bytes()[:900]}
        page.set_input_files("#file", cut)
        expect(page.locator(".pane .problem strong")).to_have_text("cut.jpg: damaged or truncated.")
        for start, told in OTHERS.items():
            page.set_input_files("#file", {"name": "IMG_1", "mimeType": "", "buffer": start + bytes(40)})
            expect(page.locator(".pane .problem")).to_have_text(told)
        page.context.set_offline(True)
        page.set_input_files("#file", str(SHIP))
        expect(page.locator(".pane .problem")).to_contain_text("The server cannot be reached.")
        page.context.set_offline(False)
        page.click("text=Try again")
        expect(page.locator(".answer")).to_have_text("ship")
        expect(page.locator(".pane .problem")).to_be_hidden()

    visit(script, expected="status of 4(00|15)|ERR_INTERNET_DISCONNECTED")


def test_on_a_phone_nothing_is_cut_off(visit: Visit) -> None:
    def script(page: Page) -> None:
        width = "element => element.scrollWidth"
        assert page.locator("html").evaluate(width) == 360
        expect(page.get_by_role("button", name="Take a photo")).to_be_visible()
        assert page.locator("#camera").get_attribute("capture") == "environment"
        page.tap("[data-example='ship.jpg']")
        expect(page.locator(".frame.explained")).to_be_visible()
        assert page.locator("html").evaluate(width) == 360
        heights = page.locator("button:visible, select:visible").evaluate_all(
            "all => all.map((each) => each.getBoundingClientRect().height)"
        )
        assert min(heights) >= 40
        box = page.locator(".patches").bounding_box()
        assert box is not None
        assert box["width"] == 360 - 2 * 16
        page.locator(".patches").tap(position={"x": 10, "y": 10})
        expect(page.locator(".caption")).to_contain_text(f"The patch in {named(0)} attends")
        page.locator(".patches").tap(position={"x": 12, "y": 12})
        expect(page.locator(".caption")).to_contain_text("Touch a patch")
        page.click("#compare")
        assert page.locator("html").evaluate(width) == 360
        expect(page.get_by_role("radio", name="lower")).to_be_checked()  # the panes are not side by side here

    visit(script, viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)


def contrast(one: str, other: str) -> float:
    """WCAG's ratio of two colours as CSS computes them."""

    def light(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(scheme: str, visit: Visit) -> None:
    def colours(page: Page) -> dict[str, str]:
        """The page's palette, as computed."""
        read = """root => {
          const probe = document.body.appendChild(document.createElement("i"));
          const value = (name) => {
            probe.style.color = `var(--${name})`;
            return getComputedStyle(probe).color;
          };
          const names = ["paper", "raised", "ink", "faint", "edge", "blue", "on-blue", "red", "rose"];
          return Object.fromEntries(names.map((name) => [name, value(name)]));
        }"""
        return page.locator("html").evaluate(read)

    def script(page: Page) -> None:
        pressed = "true" if scheme == "dark" else "false"
        expect(page.locator("#theme")).to_have_attribute("aria-pressed", pressed)
        seen = [colours(page)]
        page.click("#theme")
        seen.append(colours(page))
        dark, light = seen if scheme == "dark" else reversed(seen)
        assert (light["paper"], dark["paper"]) == ("rgb(255, 255, 255)", "rgb(21, 22, 26)")
        for palette in seen:
            for text, ground in TEXTS:
                assert contrast(palette[text], palette[ground]) >= 4.5, (text, ground)
            assert contrast(palette["edge"], palette["paper"]) >= 3  # of fields

    visit(script, color_scheme=scheme)


TEXTS = [
    *((text, ground) for text in ("ink", "faint", "blue") for ground in ("paper", "raised")),
    ("on-blue", "blue"),
    ("red", "rose"),
    ("ink", "rose"),
]


def test_two_pictures_side_by_side(visit: Visit) -> None:
    def script(page: Page) -> None:
        take_example(page)
        page.click("#compare")
        expect(page.locator(".pane.empty .caption")).to_contain_text("a picture for this side")
        take_example(page, "cat.jpg", panes=2)
        assert page.locator(".answer").all_inner_texts() == ["ship", "cat"]
        page.check("input[name=side][value='0']")
        take_example(page, "dog.jpg", panes=2)
        expect(page.locator(".answer").first).to_have_text("dog")
        page.select_option("#method", "rollout")
        expect(page.locator(".caption", has_text="(rollout)")).to_have_count(2)
        page.click("#compare")
        expect(page.locator(".pane")).to_have_count(1)
        expect(page.locator(".answer")).to_have_text("dog")

    visit(script)


def run_snippet(command: list[str], folder: Path, snippet: str, **environment: str) -> str:
    """What a snippet prints in a folder with the picture."""
    shutil.copy(SHIP, folder)
    (folder / "why.png").unlink(missing_ok=True)
    done = subprocess.run(
        [*command, snippet], cwd=folder, capture_output=True, text=True, timeout=60, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr
    assert Image.open(io.BytesIO((folder / "why.png").read_bytes())).format == "PNG"
    return done.stdout


def test_the_snippets_work(visit: Visit, tmp_path: Path) -> None:
    def script(page: Page) -> tuple[str, str]:
        take_example(page)
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.click("#copy")
        expect(page.locator("#copy")).to_have_text("Copied")
        copied = page.locator("html").evaluate("() => navigator.clipboard.readText()")
        page.click("#tab-python")
        return copied, page.inner_text("#snippet")

    curl, python = visit(script)
    assert run_snippet([sys.executable, "-c"], tmp_path, python).splitlines()[0] == " 99.9% ship"
    if shutil.which("curl"):
        assert '"label":"ship"' in run_snippet(["sh", "-c"], tmp_path, curl)


@in_fuzz_only
def test_a_token_is_asked_for_and_two_models_are_compared(visit: Visit, tmp_path: Path, make_model) -> None:
    def script(page: Page) -> str:
        expect(page.locator("#token-dialog")).to_be_visible()
        page.fill("#token", "not-this-one")
        page.keyboard.press("Enter")
        expect(page.locator("#token-problem")).to_be_visible()
        page.fill("#token", TOKEN)
        page.keyboard.press("Enter")
        expect(page.locator("#served")).to_have_text("2 models")
        take_example(page)
        page.click("#compare")
        expect(page.locator(".frame.explained")).to_have_count(2)
        assert page.locator(".model").evaluate_all("all => all.map((each) => each.value)") == ["cifar10", "small"]
        ship, other = page.locator(".answer").all_inner_texts()
        assert ship == "ship"
        assert re.fullmatch(r"class \d", other)  # it has no names for its classes
        kept = page.locator("html").evaluate("() => [localStorage.length, sessionStorage.length, document.cookie]")
        assert kept == [0, 0, ""]
        assert TOKEN not in page.inner_text("#snippet")
        page.locator(".model").first.select_option("small")
        expect(page.locator("#known")).to_have_text("small knows 7 classes, which have no names.")
        expect(page.locator("#examples")).to_be_hidden()  # it knows none of them
        change_the_model_while_it_explains(page)
        page.click("#tab-python")
        return page.inner_text("#snippet")

    def change_the_model_while_it_explains(page: Page) -> None:
        expect(page.locator("[aria-busy], .working")).to_have_count(0)
        predictions, maps = Held(page, "/v1/predict"), Held(page, "/v1/explain")
        left = page.locator(".pane").first
        for turn, name in enumerate(("cifar10", "small", "cifar10")):
            left.locator(".model").select_option(name)
            predictions.wait(turn + 1)
            if turn == 1:  # also while the labels are on their way
                continue
            predictions.give(turn)
            maps.wait(turn // 2 + 1)
        maps.give(1, 0)
        predictions.give(1)
        expect(page.locator("[aria-busy], .working")).to_have_count(0)
        expect(left.locator(".answer")).to_have_text("ship")
        expect(left.locator(".caption")).to_contain_text("speak for ship")
        expect(left.locator(".facts")).to_contain_text("cifar10")

    small = tmp_path / "small.safetensors"
    Predictor(runtime=TorchRuntime(make_model()), preprocess=Preprocess(size=(32, 32))).save(small)
    service = Running("cifar10", str(small), token=TOKEN)
    try:
        python = visit(script, service.url, expected="status of 401")
        assert "ship" in run_snippet([sys.executable, "-c"], tmp_path, python, VITRAIL_TOKEN=TOKEN)
    finally:
        service.end()
