"""Nothing that we depend on reports to its makers: no name is looked up, no identifier is left behind."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.data.conftest import picture
from tests.prediction.conftest import write_tiny

from fuzzing import in_fuzz_only

CONTROL = "control.invalid"  # is looked up on purpose, to see that it is counted

# Runtimes in C++ call the C library, which Python cannot watch: this library stands before it, and writes down the
# names that are looked up, and the addresses of other machines.
WATCH = r"""
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void note(const char *text) {
    int file = open(getenv("LOOKED_UP"), O_WRONLY | O_APPEND | O_CREAT, 0600);
    dprintf(file, "%s\n", text);
    close(file);
}

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    int (*next)(const char *, const char *, const void *, void *) = dlsym(RTLD_NEXT, "getaddrinfo");
    if (node) note(node);
    return next(node, service, hints, found);
}

struct hostent *gethostbyname(const char *name) {
    struct hostent *(*next)(const char *) = dlsym(RTLD_NEXT, "gethostbyname");
    note(name);
    return next(name);
}

int connect(int socket, const struct sockaddr *address, socklen_t length) {
    int (*next)(int, const struct sockaddr *, socklen_t) = dlsym(RTLD_NEXT, "connect");
    char text[INET6_ADDRSTRLEN];
    if (address->sa_family == AF_INET)
        note(inet_ntop(AF_INET, &((const struct sockaddr_in *)address)->sin_addr, text, sizeof text));
    if (address->sa_family == AF_INET6)
        note(inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)address)->sin6_addr, text, sizeof text));
    return next(socket, address, length);
}
"""

WORK = f"""
import json, os, signal, socket, threading, urllib.request
import vitrail

picture = open("cat.png", "rb").read()
vitrail.export("tiny.safetensors", "tiny.onnx")
vitrail.export("tiny.safetensors", "tiny", to="openvino")
for model in ("tiny.safetensors", "tiny.onnx", "tiny"):
    vitrail.load(model).predict("cat.png")
vitrail.train("digits", epochs=1, batch_size=512, check=False, report=False, track="wandb,mlflow", out="run")
assert json.load(open("run/tracking.json")).keys() == {{"wandb", "mlflow"}}
try:
    socket.getaddrinfo("{CONTROL}", 80)
except OSError:
    pass

def ask(address):
    for model in ("a", "b"):
        request = urllib.request.Request(f"{{address}}/v1/predict?model={{model}}", picture)
        request.add_header("Content-Type", "image/png")
        assert urllib.request.urlopen(request).status == 200
    print("answered", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

def ready(address, facts):
    threading.Thread(target=ask, args=(address,)).start()

vitrail.serve({{"a": "tiny.onnx", "b": "tiny"}}, on_ready=ready, port=0, threads=1, max_batch=1)
"""


@in_fuzz_only
def test_loading_predicting_exporting_tracking_and_serving_look_up_nothing(tmp_path: Path) -> None:
    """ONNX Runtime makes its identifier and its queue of reports when it is imported, and sends them seconds later."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("counting look-ups in the C library needs Linux and a C compiler")
    home, watch, looked_up = tmp_path / "home", tmp_path / "watch.so", tmp_path / "looked-up"
    home.mkdir()
    subprocess.run([compiler, "-shared", "-fPIC", "-o", watch, "-xc", "-"], input=WATCH.encode(), check=True)
    write_tiny(tmp_path / "tiny.safetensors")
    picture(0).save(tmp_path / "cat.png")
    places = dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME"), str(home))
    chosen = {"LD_PRELOAD": str(watch), "LOOKED_UP": str(looked_up), "VITRAIL_CACHE": str(tmp_path / "cache")}
    chosen["MPLCONFIGDIR"] = str(tmp_path / "matplotlib")
    unset = {"ORT_DISABLE_TELEMETRY", "HF_HUB_DISABLE_TELEMETRY", "DISABLE_TELEMETRY", "DO_NOT_TRACK", "CI"}
    unset |= {name for name in os.environ if name.startswith(("WANDB_", "MLFLOW_", "PYTEST_", "GITHUB_"))}
    environment = {name: value for name, value in os.environ.items() if name not in unset} | places | chosen
    # A program that is linked without the C library, as W&B's is, would go through this proxy.
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.setblocking(False)
        address = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        environment |= {"HTTP_PROXY": address, "HTTPS_PROXY": address, "NO_PROXY": "127.0.0.1,localhost"}
        child = subprocess.run(
            [sys.executable, "-c", WORK], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        with pytest.raises(BlockingIOError):  # nobody has called
            proxy.accept()
    assert "answered" in child.stdout, child.stderr
    outside = {name for name in looked_up.read_text().split() if name not in ("127.0.0.1", "::1", "localhost")}
    assert outside == {CONTROL}
    assert [str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()] == []


def test_whoever_wants_to_report_may(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = {"HF_HUB_DISABLE_TELEMETRY": "1", "MLFLOW_DISABLE_TELEMETRY": "true", "WANDB_ERROR_REPORTING": "false"}
    for name in usual:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "0")
    names = ["ORT_DISABLE_TELEMETRY", *usual]
    code = f"import os, vitrail; print(*[os.environ[name] for name in {names}])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["0", *usual.values()]
