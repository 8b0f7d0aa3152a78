"""Hostile requests over raw sockets. Against a running service: python tests/serving/hostile.py PID PORT COUNT"""

import base64
import io
import json
import os
import random
import socket
import struct
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock

import numpy as np
import psutil
from PIL import Image

Random = random.Random
# Statuses that a client can bring about; those from 500 on must also have one of the codes.
EXPECTED = {200, 400, 401, 403, 404, 405, 408, 413, 415, 422, 429, 431, 503, 504}
NO_ANSWER = -1  # and no end of the connection, for many seconds
CODES = {"queue_full", "not_ready", "too_many_connections", "timeout"}


@dataclass
class Attack:
    """What is sent, in pieces with pauses (seconds) between them, and whether the answer is waited for."""

    pieces: list[bytes | float]
    listens: bool = True
    resets: bool = False  # ends the connection without a goodbye


def noise(rng: Random, kind: str, size: tuple[int, int], mode: str = "RGB", frames: int = 1) -> bytes:
    pictures = []
    for _ in range(frames):
        values = np.frombuffer(rng.randbytes(size[0] * size[1] * 3), dtype=np.uint8)
        pictures.append(Image.fromarray(values.reshape(size[1], size[0], 3)).convert(mode))
    stream = io.BytesIO()
    more = {"save_all": True, "append_images": pictures[1:], "duration": 50} if frames > 1 else {}
    pictures[0].save(stream, kind, **more)
    return stream.getvalue()


def png_of(width: int, height: int, pixels: bytes) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


PATHS = ("/v1/predict", "/v1/embed", "/v1/explain", "/v1/attention", "/v1/predict?top_k=3", "/v2/models/cifar10/infer")


def post(body: bytes, path: str = "/v1/predict", *headers: str, length: int | str | None = -1) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", *headers]
    if length is not None:
        lines.append(f"Content-Length: {len(body) if length == -1 else length}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def chunked(body: bytes, path: str, rng: Random, end: bool = True) -> bytes:
    pieces = [body[i : i + 700] for i in range(0, len(body), 700)]
    encoded = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return post(encoded + (b"0\r\n\r\n" if end else b""), path, "Transfer-Encoding: chunked", length=None)


def form_of(rng: Random, parts: int = 2) -> bytes:
    one = b'--x\r\nContent-Disposition: form-data; name="p"; filename="%s.png"\r\n\r\n%s\r\n'
    body = b"".join(one % (rng.randbytes(3).hex().encode(), noise(rng, "PNG", (8, 8))) for _ in range(parts))
    return body + b"--x--\r\n"


def lie_about_types(rng: Random) -> Attack:
    kinds = (
        "application/json",
        "multipart/form-data; boundary=x",
        "image/svg+xml",
        "text/html",
        "a/b; c=\x80",
        "",
        ";;;",
    )
    bodies = (noise(rng, "PNG", (9, 9)), b"{}", b'{"pictures": {"a": 1}}', b"\0" * 50, rng.randbytes(200), form_of(rng))
    return Attack([post(rng.choice(bodies), rng.choice(PATHS), f"Content-Type: {rng.choice(kinds)}")])


def odd_json(rng: Random) -> Attack:
    values: list[object] = [None, 1, -1e308, "x", [], {}, [[[]]], True, "\ud800", 10**30, ["a"] * 100, {"a": {"b": 1}}]
    keys = ("pictures", "top_k", "inputs", "outputs", "id", "parameters", "shape")
    content = {rng.choice(keys): rng.choice(values) for _ in range(3)}
    tensor = {
        "name": "picture",
        "datatype": "BYTES",
        "shape": [1],
        "data": ["QQ=="],
        rng.choice(keys): rng.choice(values),
    }
    if rng.random() < 0.5:
        content["inputs"] = [tensor]
    text = json.dumps(content).encode()
    if rng.random() < 0.3:
        text = rng.choice((b"[" * 50_000, b'{"a":' * 50_000, b"1" * 100_000, text[:-3], b"\xef\xbb\xbf" + text, b"NaN"))
    return Attack([post(text, rng.choice(PATHS), "Content-Type: application/json")])


def truncated_form(rng: Random) -> Attack:
    body = form_of(rng)
    cut = body[: rng.randrange(len(body))]
    return Attack([post(cut, rng.choice(PATHS), "Content-Type: multipart/form-data; boundary=x")])


def odd_form(rng: Random) -> Attack:
    bodies = (
        form_of(rng, 100),
        b"--x\r\n" * 10_000,
        b"\r\n" * 50_000 + b"--x\r\n",
        b"--x\r\n" + b"A: b\r\n" * 5000 + b"\r\n",
        b"--x\r\nContent-Disposition: form-data; name=a; filename*=utf-8''%ff%fe\r\n\r\nx\r\n--x--\r\n",
        b'--x\r\nContent-Disposition: form-data; name="a"; filename="../../../etc/passwd"\r\n\r\nx\r\n--x--\r\n',
        b"--x" * 20_000,
    )
    boundary = rng.choice(("x", "x", "x", '"x"', "", "y" * 300, "x\x80"))
    return Attack([post(rng.choice(bodies), "/v1/predict", f"Content-Type: multipart/form-data; boundary={boundary}")])


def bomb(rng: Random) -> Attack:
    width, height = rng.choice(((20_000, 20_000), (2**31 - 1, 2**31 - 1), (1, 2**31 - 1), (50_000, 1_001), (65_535, 1)))
    return Attack([post(png_of(width, height, zlib.compress(b"\0" * 100_000)), rng.choice(PATHS[:4]))])


def long_sides(rng: Random) -> Attack:
    """Pictures of up to 20,000 pixels that are what they say, within the limit of pixels or not."""
    width, height = rng.choice(((20_000, 1), (1, 20_000), (20_000, 200), (20_000, 20_000)))
    rows = zlib.compress(bytes(height * (1 + 3 * width)), 1) if height < 20_000 or width == 1 else b""
    return Attack([post(png_of(width, height, rows), rng.choice(PATHS[:4]))])


def jpeg_with_another_size(rng: Random) -> Attack:
    data = bytearray(noise(rng, "JPEG", (16, 16)))
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = struct.pack(">HH", rng.choice((0, 1, 5000, 65535)), rng.choice((0, 1, 7000, 65535)))
    return Attack([post(bytes(data), rng.choice(PATHS[:4]))])


def many_scans(rng: Random) -> Attack:
    data = noise(rng, "JPEG", (64, 64))
    scan = data[data.index(b"\xff\xda") : -2]
    return Attack([post(data[:-2] + scan * rng.choice((3, 500)) + b"\xff\xd9")])


def unusual(rng: Random) -> Attack:
    kind, size, mode, frames = rng.choice(
        (
            ("PNG", (1, 1), "RGB", 1),
            ("JPEG", (1, 1), "L", 1),
            ("JPEG", (20, 20), "CMYK", 1),
            ("PNG", (20, 20), "P", 1),
            ("PNG", (20, 20), "LA", 1),
            ("PNG", (20, 20), "I;16", 1),
            ("PNG", (9, 9), "1", 1),
            ("PNG", (12, 12), "RGB", 5),
            ("WEBP", (12, 12), "RGB", 5),
            ("GIF", (12, 12), "RGB", 5),
            ("WEBP", (1, 400), "RGBA", 1),
            ("TIFF", (5, 5), "RGB", 1),
        )
    )
    mode_of = "L" if mode == "I;16" else mode
    return Attack([post(noise(rng, kind, size, mode_of, frames), rng.choice(PATHS[:4]))])


def polyglot(rng: Random) -> Attack:
    inner, outer = noise(rng, "JPEG", (8, 8)), noise(rng, "PNG", (8, 8))
    bodies = (
        outer + b"PK\x03\x04<script>alert(1)</script>",
        b"GIF89a" + inner,
        inner[:20] + outer + inner[20:],
        b"\xff\xd8\xff\xe0" + outer,
        b"RIFF\xff\xff\xff\xffWEBPVP8X" + b"\xff" * 40 + inner,
        b"RIFF\x10\0\0\0WEBPVP8 " + rng.randbytes(40),
        b"\x89PNG\r\n\x1a\n" + inner,
        b"%!PS-Adobe-3.0\n" + inner,
        b"P6 99999 99999 255\n" + inner,
    )
    return Attack([post(rng.choice(bodies), rng.choice(PATHS[:4]))])


def damaged(rng: Random) -> Attack:
    data = bytearray(noise(rng, rng.choice(("PNG", "JPEG", "WEBP")), (40, 40)))
    for _ in range(rng.randrange(1, 20)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    end = rng.randrange(len(data)) if rng.random() < 0.5 else len(data)
    return Attack([post(bytes(data[:end]), rng.choice(PATHS[:4]))])


def smuggled(rng: Random) -> Attack:
    hidden = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
    heads = (
        post(b"0\r\n\r\n" + hidden, "/v1/predict", "Transfer-Encoding: chunked"),
        post(hidden, "/v1/predict", "Content-Length: 0"),
        post(hidden, "/v1/predict", length="+5"),
        post(hidden, "/v1/predict", length="5, 5"),
        post(hidden, "/v1/predict", length="-1"),
        post(hidden, "/v1/predict", length="9" * 40),
        post(hidden, "/v1/predict", "Transfer-Encoding: chunked, identity", length=None),
        post(hidden, "/v1/predict", "Transfer-Encoding : chunked", length=None),
        post(hidden, "/v1/predict", "Transfer-Encoding: xchunked", length=None),
        post(b"fffffffffffffffff\r\n" + hidden, "/v1/predict", "Transfer-Encoding: chunked", length=None),
        post(b"-5\r\n" + hidden, "/v1/predict", "Transfer-Encoding: chunked", length=None),
        post(b"5;" + b"a" * 20_000 + b"\r\n", "/v1/predict", "Transfer-Encoding: chunked", length=None),
        b"POST /v1/predict HTTP/1.1\nHost: localhost\nContent-Length: 0\n\n",
        b"POST /v1/predict HTTP/1.1\r\nHost: a\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n",
        b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b: c\r\nContent-Length: 0\r\n\r\n",
        b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nX\0: a\r\nContent-Length: 0\r\n\r\n",
        b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\nContent-Length: 0\r\n\r\n",
    )
    return Attack([rng.choice(heads)])


def odd_requests(rng: Random) -> Attack:
    lines = (
        "GET / HTTP/1.0",
        "GET http://evil.example/v1/models HTTP/1.1",
        "OPTIONS * HTTP/1.1",
        "CONNECT evil.example:443 HTTP/1.1",
        "TRACE /v1/models HTTP/1.1",
        "BREW /v1/predict HTTP/1.1",
        "PRI * HTTP/2.0",
        "GET /v1/models HTTP/9.9",
        "GET  /v1/models  HTTP/1.1",
        "GET /static/../../settings.py HTTP/1.1",
        "GET /static/%2e%2e%2fsettings.py HTTP/1.1",
        "GET /static/%00 HTTP/1.1",
        "GET /\x80\xff HTTP/1.1",
        "GET /v2/models/%s HTTP/1.1" % ("a" * 3000),
        "GET /%s HTTP/1.1" % ("a" * 30_000),
        f"GET /v1/labels?model={rng.choice(('../x', 'hf://a/b', '/etc/passwd', '%ff', 'a' * 500, ''))} HTTP/1.1",
        "DELETE /v1/models HTTP/1.1",
        "HEAD /v2/health/ready HTTP/1.1",
        rng.randbytes(60).decode("latin-1"),
    )
    upgrade = rng.choice(
        ([], ["Connection: Upgrade", "Upgrade: websocket"], ["Expect: 100-continue"], ["Host: evil.example"])
    )
    host = [] if any("evil" in line for line in upgrade) or rng.random() < 0.1 else ["Host: localhost"]
    return Attack(["\r\n".join([rng.choice(lines), *host, *upgrade, "", ""]).encode("latin-1")])


def many_headers(rng: Random) -> Attack:
    lines = rng.choice((["A: b"] * 1000, ["A: " + "b" * 100_000], ["B" * 20_000 + ": c"], ["Cookie: " + "a=b;" * 3000]))
    return Attack([post(b"", "/v1/predict", *lines)])


def slow(rng: Random) -> Attack:
    request = post(noise(rng, "PNG", (30, 30)))
    cut = rng.randrange(1, 200)
    return Attack([request[:cut], rng.choice((0.02, 0.1)), request[cut : cut + 5], 0.02], listens=False)


def leaves(rng: Random) -> Attack:
    body = noise(rng, "PNG", (200, 200))
    request = post(body, rng.choice(PATHS[:4]))
    cut = rng.choice((len(request), rng.randrange(len(request))))
    return Attack([request[:cut]], listens=False, resets=rng.random() < 0.5)


def streamed(rng: Random) -> Attack:
    return Attack(
        [chunked(noise(rng, "PNG", (30, 30)), rng.choice(PATHS[:2]), rng, end=rng.random() < 0.8)],
        listens=rng.random() < 0.8,
    )


def raw_tensors(rng: Random) -> Attack:
    size = rng.choice((0, 4, 100, 2**31, -1, 10**20))
    tensor = {
        "name": rng.choice(("picture", "images", "x")),
        "datatype": rng.choice(("BYTES", "FP32", "INT8")),
        "shape": rng.choice(([1], [1, 3, 32, 32], [2**30, 3, 32, 32], [0], [-1], [], [1, 1])),
        "parameters": {"binary_data_size": size},
    }
    text = json.dumps({"inputs": [tensor]}).encode()
    length = rng.choice((len(text), len(text) + 5, 0, 10**9, "x"))
    blob = rng.choice(
        (b"", struct.pack("<I", 2**31) + b"abc", rng.randbytes(100), np.full(3072, np.nan, np.float32).tobytes())
    )
    return Attack([post(text + blob, PATHS[-1], f"Inference-Header-Content-Length: {length}")])


def base64_pictures(rng: Random) -> Attack:
    texts = [base64.b64encode(noise(rng, "PNG", (5, 5))).decode(), "A" * 400_001, "=" * 10, "QUJD\n", "ä", ""]
    content = {"pictures": [rng.choice(texts) for _ in range(rng.choice((1, 3, 40)))]}
    return Attack([post(json.dumps(content).encode(), "/v1/predict", "Content-Type: application/json")])


ATTACKS: tuple[Callable[[Random], Attack], ...] = (
    lie_about_types, odd_json, truncated_form, odd_form, bomb, long_sides, jpeg_with_another_size, many_scans, unusual,
    polyglot, damaged, smuggled, odd_requests, many_headers, slow, leaves, streamed, raw_tensors, base64_pictures,
)  # fmt: skip


def carry_out(port: int, attack: Attack) -> tuple[int, bytes]:
    """The status of the first answer (0: the connection was closed without one), and the answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        received = b""
        try:
            for piece in attack.pieces:
                if isinstance(piece, float):
                    time.sleep(piece)
                else:
                    connection.sendall(piece)
            if attack.resets:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if not attack.listens:
                return 0, b""
            while chunk := connection.recv(65536):
                received += chunk
                head, _, body = received.partition(b"\r\n\r\n")
                lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                if attack.pieces[0][:5] == b"HEAD " and received.endswith(b"\r\n\r\n"):  # type: ignore[index]
                    break
                if lengths and len(body) >= int(lengths[0].split(b":")[1]) and not head.startswith(b"HTTP/1.1 100"):
                    break
        except TimeoutError:
            return NO_ANSWER, received
        except (ConnectionError, BrokenPipeError):
            pass
    if b"100 Continue" in received[:40]:
        received = received.partition(b"\r\n\r\n")[2]
    return (int(received[9:12]), received) if received[9:12].isdigit() else (0, received)


def unexpected(status: int, answer: bytes) -> bool:
    """Whether an answer is none that a client may bring about."""
    if status and status not in EXPECTED and not (status == 500 and b'"model_failed"' in answer):
        return True
    return status in (503, 504) and not any(f'"{code}"'.encode() in answer for code in CODES)


def run(port: int, count: int, seed: int = 0, threads: int = 8) -> tuple[Counter[int], list[str]]:
    """Statuses of so many attacks, and those answers that must not be."""
    statuses: Counter[int] = Counter()
    wrong: list[str] = []
    lock = Lock()

    def work(number: int) -> None:
        make = ATTACKS[number % len(ATTACKS)]
        status, answer = carry_out(port, make(Random(f"{seed}/{number}")))
        with lock:
            statuses[status] += 1
            if unexpected(status, answer):
                wrong.append(f"{make.__name__} #{number}: {answer[:300]!r}")

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(count)))
    return statuses, wrong


def files_of(pid: int) -> int:
    """Files and connections that a service has open, its workers included."""
    front = psutil.Process(pid)
    return sum(process.num_fds() for process in (front, *front.children()))


def usage_of(pid: int) -> str:
    """Process, memory, files and threads of a service and its workers."""
    front = psutil.Process(pid)
    return "; ".join(
        f"{each.pid}: {each.memory_info().rss / 1e6:.0f} MB, {each.num_fds()} files, {each.num_threads()} threads"
        for each in (front, *front.children())
    )


if __name__ == "__main__":
    service, port, count, seed = *map(int, sys.argv[1:4]), int(os.environ.get("SEED", "0"))
    for turn in range(2):  # what the second turn adds to the memory is a leak
        print(f"before: {usage_of(service)}")
        began = time.perf_counter()
        statuses, wrong = run(port, count // 2, seed=seed + turn)
        print(f"{statuses.total()} requests in {time.perf_counter() - began:.0f} s: {dict(sorted(statuses.items()))}")
        print("\n".join(wrong) or "no unexpected answer")
    time.sleep(1.0)
    print(f"after: {usage_of(service)}")
