"""The routes of /v1: what they take, what they refuse, and who is still waiting."""

import asyncio
import base64
import gzip
import json
import zlib
from typing import Any

import pytest

from serving.conftest import InProcess, encode
from serving.hostile import png_of
from serving.test_gate import ask
from vitrail.serving.batching import Answer

PICTURE = encode()


def test_the_three_forms_of_a_request() -> None:
    app = InProcess()
    raw = ask(app, lambda client: client.post("/v1/predict", content=PICTURE, headers={"content-type": "text/html"}))
    form = ask(
        app, lambda client: client.post("/v1/predict", files=[("a", ("x\x1b.png", PICTURE)), ("b", ("b", PICTURE))])
    )
    body = {"pictures": [base64.b64encode(PICTURE).decode()] * 3, "top_k": 2}
    listed = ask(app, lambda client: client.post("/v1/predict", json=body))
    assert [row["picture"] for row in raw.json()["predictions"]] == ["0"]
    assert [row["picture"] for row in form.json()["predictions"]] == ["x\\x1b.png", "b"]
    assert [row["picture"] for row in listed.json()["predictions"]] == ["0", "1", "2"]
    answer = listed.json()
    assert answer["predictions"][0] == {
        "picture": "0",
        "labels": [{"label": "cat", "index": 0, "score": 0.75}],
        "label_set": None,
        "values": [],
        "intervals": None,
        "familiarity": None,
        "familiar": None,
        "error": None,
    }
    assert answer["model"] == {
        "name": "first",
        "version": "0123456789ab",
        "sha256": "0123456789ab" * 5,
        "runtime": "torch",
    }
    assert answer["milliseconds"]["compute"] == 3.0
    assert answer["request_id"] == listed.headers["x-request-id"]
    wanted = [item.facts["top_k"] for items in app.worker.seen for item in items]
    assert wanted == [None] * 3 + [2] * 3  # None: what is usual for the task of the model


def test_what_a_calibrated_model_adds() -> None:
    def answers(facts: dict[str, Any], blob: bytes) -> Answer:
        assert facts["coverage"] == 0.9
        return Answer({"labels": [], "label_set": ["cat", "dog"], "familiarity": 0.25, "familiar": True})

    app = InProcess(answers)
    answer = ask(app, lambda client: client.post("/v1/predict?coverage=0.9", content=PICTURE))
    (entry,) = answer.json()["predictions"]
    assert (entry["label_set"], entry["familiarity"], entry["familiar"]) == (["cat", "dog"], 0.25, True)
    for wrong in ("0", "1", "nan", "x", "0.9&coverage=0.9", "%D9%A1"):
        refused = ask(app, lambda client, wrong=wrong: client.post(f"/v1/predict?coverage={wrong}", content=PICTURE))
        assert (refused.status_code, refused.json()["error"]["code"]) == (422, "invalid_argument")


NEWER = {"version": "ba9876543210", "sha256": "ba9876543210" * 5, "runtime": "onnx", "classes": 2}


def test_an_answer_names_the_model_that_gave_it() -> None:
    """Also if it has been exchanged for another one by then."""
    app = InProcess(lambda facts, blob: Answer({"labels": []}, [b"png"], model=NEWER))
    answer = ask(app, lambda client: client.post("/v1/predict", content=PICTURE)).json()
    assert (answer["model"]["version"], answer["model"]["sha256"]) == (NEWER["version"], NEWER["sha256"])
    drawn = ask(app, lambda client: client.post("/v1/explain", content=PICTURE)).headers
    assert [drawn[f"x-vitrail-{name}"] for name in ("model", "version", "sha256")] == [
        *("first", NEWER["version"], NEWER["sha256"])
    ]
    labels = ask(app, lambda client: client.get("/v1/labels")).json()
    assert (labels["version"], labels["sha256"]) == ("0123456789ab", "0123456789ab" * 5)


def test_one_request_is_answered_by_one_model() -> None:
    """A model is exchanged while a request's pictures are computed: they are computed again."""
    models = iter([{"version": "old"}] + [NEWER] * 3)
    app = InProcess(lambda facts, blob: Answer({"labels": []}, model=next(models)))
    answer = ask(app, lambda client: client.post("/v1/predict", files=[("p", ("a", PICTURE))] * 2))
    assert answer.json()["model"]["version"] == NEWER["version"]
    assert len(app.worker.seen) == 2


def test_one_broken_picture_among_several() -> None:
    def answers(facts: dict[str, Any], blob: bytes) -> Answer:
        if b"broken" in blob:
            return Answer({"error": {"code": "unreadable_picture", "message": f"{facts['name']}: damaged."}})
        return Answer({"labels": [["cat", 0, 1.0]]})

    files = [
        ("p", (f"{name}.png", data)) for name, data in (("a", PICTURE), ("b", PICTURE + b"broken"), ("c", b"GIF89a"))
    ]
    answer = ask(InProcess(answers), lambda client: client.post("/v1/predict", files=files))
    assert answer.status_code == 200
    codes = [row["error"] and row["error"]["code"] for row in answer.json()["predictions"]]
    assert codes == [None, "unreadable_picture", "unsupported_format"]
    alone = ask(InProcess(answers), lambda client: client.post("/v1/predict", content=PICTURE + b"broken"))
    assert alone.status_code == 400


def test_not_finite_answers_are_entries_among_several_and_errors_alone() -> None:
    def answers(facts: dict[str, Any], blob: bytes) -> Answer:
        return Answer({"error": {"code": "model_failed", "message": "not finite"}})

    alone = ask(InProcess(answers), lambda client: client.post("/v1/embed", content=PICTURE))
    assert alone.status_code == 500
    both = ask(InProcess(answers), lambda client: client.post("/v1/embed", files=[("p", ("a", PICTURE))] * 2))
    assert [row["vector"] for row in both.json()["embeddings"]] == [None, None]
    assert both.status_code == 200


def form(*names: str, data: bytes = PICTURE, end: bool = True) -> dict[str, Any]:
    parts = b"".join(
        b'--b\r\nContent-Disposition: form-data; name="p"' + name.encode() + b"\r\n\r\n" + data + b"\r\n"
        for name in names
    )
    return {
        "content": parts + (b"--b--\r\n" if end else b""),
        "headers": {"content-type": "multipart/form-data; boundary=b"},
    }


def listed(value: Any) -> dict[str, Any]:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return {"content": text, "headers": {"content-type": "application/json"}}


GOOD = base64.b64encode(PICTURE).decode()
FILE = '; filename="a"'


@pytest.mark.parametrize(
    ("path", "request_", "status", "code"),
    [
        ("/v1/predict", {"content": b""}, 400, "unreadable_picture"),
        ("/v1/predict", {"content": b"hello"}, 415, "unsupported_format"),
        ("/v1/predict", {"content": PICTURE, "headers": {"content-encoding": "br"}}, 415, "unsupported_format"),
        ("/v1/predict", {"content": PICTURE, "headers": {"content-encoding": "gzip"}}, 400, "unreadable_body"),
        ("/v1/predict", {"content": b"x" * 1_000_001}, 413, "too_large"),
        ("/v1/predict?top_k=0", {"content": PICTURE}, 422, "invalid_argument"),
        ("/v1/predict?top_k=x", {"content": PICTURE}, 422, "invalid_argument"),
        ("/v1/predict?top_k=٣", {"content": PICTURE}, 422, "invalid_argument"),
        ("/v1/predict?top_k=3&top_k=3", {"content": PICTURE}, 422, "invalid_argument"),
        ("/v1/predict?topk=3", {"content": PICTURE}, 422, "invalid_argument"),
        ("/v1/predict?%ff=3", {"content": PICTURE}, 422, "invalid_argument"),
        ("/v1/predict?model=/etc/passwd", {"content": PICTURE}, 404, "unknown_model"),
        ("/v1/predict?" + "a=1&" * 30, {"content": PICTURE}, 422, "invalid_argument"),
        ("/v1/predict", form(), 400, "unreadable_body"),
        ("/v1/predict", form(FILE, end=False), 400, "unreadable_body"),
        ("/v1/predict", form(""), 422, "invalid_argument"),
        ("/v1/predict", form(*[FILE] * 33), 422, "invalid_argument"),
        ("/v1/predict", {**form(FILE), "headers": {"content-type": "multipart/form-data"}}, 400, "unreadable_body"),
        ("/v1/predict", listed(b"{"), 400, "unreadable_body"),
        ("/v1/predict", listed(b"\xff\xfe"), 400, "unreadable_body"),
        ("/v1/predict", listed(b"[" * 100_000), 400, "unreadable_body"),
        ("/v1/predict", listed(b'{"pictures": [' + b"9" * 10_000 + b"]}"), 400, "unreadable_body"),
        ("/v1/predict", listed([GOOD]), 422, "invalid_argument"),
        ("/v1/predict", listed({"pictures": GOOD}), 422, "invalid_argument"),
        ("/v1/predict", listed({"pictures": []}), 422, "invalid_argument"),
        ("/v1/predict", listed({"pictures": [1]}), 422, "invalid_argument"),
        ("/v1/predict", listed({"pictures": ["%%%"]}), 400, "unreadable_picture"),
        ("/v1/predict", listed({"pictures": [GOOD], "top_k": True}), 422, "invalid_argument"),
        ("/v1/predict", listed({"pictures": [GOOD], "topk": 1}), 422, "invalid_argument"),
        ("/v1/predict", listed({"pictures": [GOOD] * 33}), 422, "invalid_argument"),
        ("/v1/embed?top_k=1", {"content": PICTURE}, 422, "invalid_argument"),
        ("/v1/explain?format=gif", {"content": PICTURE}, 422, "invalid_argument"),
        ("/v1/explain?method=magic", {"content": PICTURE}, 422, "invalid_argument"),
        ("/v1/explain?layer=1.5", {"content": PICTURE}, 422, "invalid_argument"),
        ("/v1/explain", listed({"pictures": [GOOD] * 2}), 422, "invalid_argument"),
        ("/v1/attention", {"content": b"GIF89a"}, 415, "unsupported_format"),
        ("/v1/labels", {"content": PICTURE}, 405, "method_not_allowed"),
        ("/V1/predict", {"content": PICTURE}, 404, "not_found"),
        ("/v1/predict/", {"content": PICTURE}, 404, "not_found"),
        ("/static/settings.py", {}, 405, "method_not_allowed"),
    ],
)
def test_mistakes(path: str, request_: dict[str, Any], status: int, code: str) -> None:
    answer = ask(InProcess(max_body_mb=1.0), lambda client: client.post(path, **request_))
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text


def test_json_that_only_costs_time_is_not_parsed() -> None:
    """The front answers everybody, and could do nothing else meanwhile."""
    request = listed(b'{"pictures": [' + b"[[[[]]]]," * 1000 + b'""]}')
    answer = ask(InProcess(), lambda client: client.post("/v1/predict", **request))
    assert answer.status_code == 400
    assert "far more values" in answer.json()["error"]["message"]
    numbers = [0.0] * (32 * 12)  # as many as the largest request may have
    tensor = {"name": "images", "datatype": "FP32", "shape": [32, 3, 2, 2], "data": numbers}
    for factor, told in ((1, "0 images"), (100, "far more values")):
        asked = listed({"inputs": [{**tensor, "data": numbers * factor}], "outputs": [{"name": "0 images"}]})
        assert told in ask(InProcess(), lambda client, asked=asked: client.post("/v2/models/first/infer", **asked)).text


def test_a_text_of_escapes_is_not_parsed() -> None:
    """Each costs the parser as much as a value; base64 has few, even if its two signs are escaped."""
    tensor = {"name": "picture", "datatype": "BYTES", "shape": [1], "data": ["AAAA"]}
    text = json.dumps({"inputs": [tensor]}).encode().replace(b"AAAA", b"\\u0041" * 3000)
    answer = ask(InProcess(), lambda client: client.post("/v2/models/first/infer", **listed(text)))
    assert (answer.status_code, answer.json()["code"]) == (400, "unreadable_body")
    assert "escaped characters" in answer.json()["error"]
    escaped = json.dumps({"pictures": [GOOD]}).replace("+", "\\u002B").replace("/", "\\/").encode()
    assert ask(InProcess(), lambda client: client.post("/v1/predict", **listed(escaped))).status_code == 200


def test_the_numbers_of_a_json_text_are_limited() -> None:
    """However many a request may have: in binary they cost nothing."""
    app = InProcess()
    app.service.hosts["first"].facts["image_size"] = [512, 512]
    tensor = b'{"inputs": [{"name": "images", "datatype": "FP32", "shape": [2, 3, 512, 512], "data": ['
    text = tensor + b"0," * 1_000_000 + b"0]}]}"
    answer = ask(app, lambda client: client.post("/v2/models/first/infer", **listed(text)))
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert "binary_data_size" in answer.json()["hint"]


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_compressed_body_is_unpacked_within_the_limits(encoding: str) -> None:
    def post(data: bytes, **settings: Any) -> Any:
        app = InProcess(max_body_mb=1.0, **settings)
        answer = ask(app, lambda client: client.post("/v1/predict", content=data, headers=headers))
        assert app.service.buffer.held == 0
        return answer

    headers = {"content-encoding": encoding}
    pack = gzip.compress if encoding == "gzip" else zlib.compress
    assert post(pack(PICTURE)).status_code == 200
    assert post(pack(PICTURE), max_buffer_mb=1.0).status_code == 200
    for data, status, told in (
        (pack(bytes(50_000_000)), 413, "over the limit of 1,000,000 bytes"),
        (pack(PICTURE)[:-3], 400, "truncated"),
        (pack(PICTURE) + b"more", 400, "goes on after its end"),
        (PICTURE, 400, "damaged"),
        (b"", 400, "empty"),
    ):
        refused = post(data)
        assert refused.status_code == status
        assert told in refused.json()["error"]["message"]


def test_what_a_client_wrote_is_quoted_once() -> None:
    """Escaped, because it may end up in a terminal, but not twice."""
    for path, quoted in (
        ("/v1/labels?model=a%1b%5c", r"no model 'a\x1b\\'"),
        ("/v1/labels?a%1b=1", r"unknown argument 'a\x1b'"),
        ("/v2/models/%C3%A9%1b", r"no model 'é\x1b'"),
    ):
        answer = ask(InProcess(), lambda client, path=path: client.get(path)).json()["error"]
        assert quoted in (answer if isinstance(answer, str) else answer["message"])
    answer = ask(InProcess(), lambda client: client.post("/v1/predict", **listed({"\x1b": 1, "pictures": [GOOD]})))
    assert r"unknown field '\x1b'" in answer.json()["error"]["message"]


def test_a_number_without_end() -> None:
    body = b'{"pictures": [' + b"1" * 5000 + b"]}"
    answer = ask(InProcess(), lambda client: client.post("/v1/predict", **listed(body)))
    assert answer.json()["error"]["message"] == "the body is not JSON: it has a number of too many digits"
    long = {"content": b"{}", "headers": {"inference-header-content-length": "1" * 5000}}
    assert ask(InProcess(), lambda client: client.post("/v2/models/first/infer", **long)).status_code == 400


@pytest.mark.parametrize(
    "name", ["../settings.py", "..%2fsettings.py", "%2e%2e/settings.py", "settings.py", "/etc/passwd", "a%00"]
)
def test_files_come_from_a_table(name: str) -> None:
    answer = ask(InProcess(), lambda client: client.get(f"/static/{name}"))
    assert answer.status_code == 404
    assert (
        ask(InProcess(), lambda client: client.get("/static/index.html"))
        .headers["content-type"]
        .startswith("text/html")
    )


def test_a_full_queue_and_a_time_limit() -> None:
    app = InProcess(None, queue_size=3, max_pictures=3, timeout=1)  # the worker never answers

    async def work(client: Any) -> None:
        asked = [asyncio.create_task(client.post("/v1/predict", content=PICTURE)) for _ in range(6)]
        answers = await asyncio.gather(*asked)
        assert sorted(answer.status_code for answer in answers) == [503, 503, 504, 504, 504, 504]
        full = next(answer for answer in answers if answer.status_code == 503)
        assert full.json()["error"]["code"] == "queue_full"
        assert full.headers["retry-after"] == "1"
        assert all(host.batcher.waiting == 0 for host in app.service.hosts.values())

    ask(app, work)


def test_all_bodies_together_are_limited() -> None:
    """Many requests that wait must not fill the memory, however few pictures they are."""
    app = InProcess(None, max_body_mb=0.005, max_buffer_mb=0.012, timeout=1)

    async def work(client: Any) -> None:
        asked = [asyncio.create_task(client.post("/v1/predict", content=PICTURE)) for _ in range(6)]
        answers = await asyncio.gather(*asked)
        assert sorted(answer.status_code for answer in answers) == [503] * 3 + [504] * 3
        full = next(answer for answer in answers if answer.status_code == 503)
        assert full.json()["error"]["code"] == "queue_full"
        assert full.headers["retry-after"].isdecimal()
        assert (await client.post("/v1/predict", content=PICTURE)).status_code == 504  # there is room again
        assert app.service.buffer.held == 0

    assert 3000 < len(PICTURE) < 4000
    ask(app, work)


def test_pixels_are_limited_for_each_request_and_for_all_together() -> None:
    """A few bytes can stand for many pixels; whoever sends small pictures must not notice."""
    app = InProcess(None, timeout=1)
    large = [("p", ("large.png", png_of(7000, 7000, b"")))]

    async def work(client: Any) -> None:
        refused = await client.post("/v1/predict", files=large * 32)
        assert (refused.status_code, refused.json()["error"]["code"]) == (413, "too_large")
        assert "1,568,000,000 pixels together, over the limit of 400,000,000" in refused.json()["error"]["message"]
        asked = [asyncio.create_task(client.post("/v1/predict", files=large * 8)) for _ in range(3)]
        asked.append(asyncio.create_task(client.post("/v1/predict", content=PICTURE)))
        *answers, small = await asyncio.gather(*asked)
        assert sorted(answer.status_code for answer in answers) == [503, 504, 504]
        full = next(answer for answer in answers if answer.status_code == 503)
        assert full.json()["error"]["code"] == "queue_full"
        assert full.headers["retry-after"].isdecimal()
        assert small.status_code == 504  # accepted, and in the only thread that is left
        assert [len(items) for items in app.worker.seen] == [1, 1]
        assert app.service.pixels == 0

    ask(app, work)


def test_a_client_that_leaves_cancels_its_work() -> None:
    app = InProcess(None)

    async def work() -> None:
        messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/predict",
            "query_string": b"",
            "headers": [(b"host", b"localhost")],
            "client": ("127.0.0.1", 1),
        }
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        await messages.put({"type": "http.request", "body": PICTURE, "more_body": False})
        batcher = app.service.hosts["first"].batcher
        app.worker.free = 0
        asked = asyncio.create_task(app.app(scope, messages.get, send))
        while not batcher.waiting:
            await asyncio.sleep(0.001)
        await messages.put({"type": "http.disconnect"})
        await asked
        assert batcher.waiting == 0
        assert sent == []

    asyncio.run(work())
    assert [line["status"] for line in app.logged()] == [499]


def test_a_model_that_is_not_there_yet() -> None:
    app = InProcess()
    app.service.hosts["first"].facts = {}
    answer = ask(app, lambda client: client.post("/v1/predict", content=PICTURE))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    app.service.draining = True
    ready = ask(app, lambda client: client.get("/v2/health/ready"))
    assert ready.status_code == 503
    assert ready.headers["connection"] == "close"
