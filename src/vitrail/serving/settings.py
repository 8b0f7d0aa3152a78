"""What can be set: one dataclass is the flags of the command and the arguments of `vitrail.serve`; and the models'
names. Needs no torch.
"""

import ipaddress
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from vitrail.data.preprocess import MAX_PIXELS
from vitrail.errors import ConfigError
from vitrail.registry import PrecisionChoice, RuntimeChoice
from vitrail.schema import validate
from vitrail.threads import num_cores
from vitrail.weights.resolve import DEFAULT_MODEL

TOKEN_VARIABLE = "VITRAIL_TOKEN"  # noqa: S105 - the name of the variable
SHORTEST_TOKEN = 8
LIMITS = "limits"  # the key of a field's metadata
CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")  # where Linux says how much of the processor a container gets


def _within(least: float, most: float, *, default: Any) -> Any:
    """A field with a number within limits."""
    return field(default=default, metadata={LIMITS: (least, most)})


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """How a service behaves; every limit is per request unless it says otherwise."""

    host: str = "127.0.0.1"
    """The address to listen on; any other than this machine's own (127.0.0.1, ::1, localhost) requires a token."""
    port: int = _within(0, 65535, default=8000)
    """The port to listen on; 0 takes a free one."""
    token: str | None = None
    """What clients must send as `Authorization: Bearer TOKEN` [default: the environment variable VITRAIL_TOKEN]."""
    max_batch: int | None = _within(1, 1024, default=None)
    """The most pictures that are computed together [default: measured when the model is loaded]."""
    max_wait_ms: float | None = _within(0, 10_000, default=None)
    """Milliseconds that a picture may wait for others while a core is idle [default: measured, usually 0]."""
    queue_size: int = _within(1, 100_000, default=256)
    """Pictures that may wait for each model; further requests get 503 with Retry-After."""
    timeout: float = _within(0.05, 3600, default=30.0)
    """Seconds after which a request that is still waiting for its answer gets 504."""
    client_timeout: float = _within(0.05, 3600, default=10.0)
    """Seconds that a client may pause while it sends a request, before the connection is closed."""
    max_body_mb: float = _within(0.001, 1000, default=20.0)
    """Megabytes that the body of a request may have."""
    max_buffer_mb: float = _within(0.001, 1e6, default=256.0)
    """Megabytes that the bodies of all requests may take together; further requests get 503 with Retry-After."""
    max_pixels: int = _within(1, MAX_PIXELS, default=50_000_000)
    """Pixels that a picture may have, judged by its header before it is decoded."""
    max_request_pixels: int = _within(1, 1024 * MAX_PIXELS, default=400_000_000)
    """Pixels that the pictures of one request may have together."""
    max_queue_pixels: int = _within(1, 1_000_000 * MAX_PIXELS, default=1_000_000_000)
    """Pixels that all large pictures (over a megapixel) that wait may have together; further ones get 503."""
    max_pictures: int = _within(1, 1024, default=32)
    """Pictures that one request may have."""
    max_client_connections: int = _within(1, 100_000, default=1000)
    """Connections that one client (by address) may have open; behind a proxy, all clients are one."""
    rate_limit: float | None = _within(0.001, 1e6, default=None)
    """Requests per second that one client (by address) may send, with bursts of twice as many [default: unlimited]."""
    runtime: RuntimeChoice = "auto"
    """The backend; auto: the fastest whose answers equal torch's, measured once for each model and machine."""
    precision: PrecisionChoice = "float32"
    """The number format to compute in; auto: bf16 where it is measured to be faster."""
    threads: int | None = _within(1, 1024, default=None)
    """Cores that each model may use [default: all cores, shared evenly among the models]."""
    reload: bool = False
    """Watch the models' files, and replace a model by its new version without losing a request."""
    access_log: bool = True
    """Write one line of JSON for each request to standard output."""

    def __post_init__(self) -> None:
        validate(self)
        _check_numbers(self)
        if not self.is_local and not self.token:
            raise ConfigError(
                f"`host={self.host!r}` can be reached from other machines, which requires a token; pass "
                "`token=`, or set "
                f"{TOKEN_VARIABLE}, or listen on 127.0.0.1 only."
            )
        if self.token is not None and not re.fullmatch(rf"[!-~]{{{SHORTEST_TOKEN},200}}", self.token):
            raise ConfigError(
                f"must have {SHORTEST_TOKEN} to 200 printable ASCII characters without spaces; make one with: "
                'python -c "import secrets; print(secrets.token_urlsafe())"',
                field="token",
            )

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the service."""
        return is_local_name(self.host)

    @property
    def max_body(self) -> int:
        """Bytes."""
        return int(self.max_body_mb * 1e6)

    @property
    def max_buffer(self) -> int:
        """Bytes."""
        return int(self.max_buffer_mb * 1e6)


def is_local_name(host: str) -> bool:
    """Whether a host name can only stand for this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def with_token_from_environment(token: str | None) -> str | None:
    """The token, or else that of the environment."""
    return token if token is not None else os.environ.get(TOKEN_VARIABLE) or None


def cores_here(limit: Path = CPU_LIMIT) -> int:
    """The cores that this process may use, also where a container may use only part of the machine."""
    try:
        quota, period = limit.read_text(encoding="ascii").split()
        return max(1, min(num_cores(), math.ceil(int(quota) / int(period))))
    except (OSError, ValueError, ZeroDivisionError):  # no limit is written "max"
        return num_cores()


def share_cores(settings: ServeSettings, models: int, cores: int) -> ServeSettings:
    """With a number of threads for each of several models."""
    return settings if settings.threads is not None else replace(settings, threads=max(1, cores // models))


def _check_numbers(settings: ServeSettings) -> None:
    for each in fields(settings):
        value = getattr(settings, each.name)
        least, most = each.metadata.get(LIMITS, (value, value))
        if value is not None and not least <= value <= most:
            raise ConfigError(f"must be from {least:,} to {most:,}; got {value:,}.", field=each.name)
    for part, whole in (
        ("max_pictures", "queue_size"),
        ("max_body_mb", "max_buffer_mb"),
        ("max_pixels", "max_request_pixels"),
        ("max_request_pixels", "max_queue_pixels"),
    ):
        if getattr(settings, part) > getattr(settings, whole):
            raise ConfigError(
                f"must be at most `{whole}=` {getattr(settings, whole):,}, or a request could never be accepted; "
                f"got {getattr(settings, part):,}.",
                field=part,
            )


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
GENERIC = {"best", "last", "model", "weights", "pytorch_model"}  # names of files that say nothing about the model

Models = str | Path | Sequence[str | Path] | Mapping[str, str | Path] | None


def name_models(models: Models) -> dict[str, str]:
    """Name → source, in their order; the first is the default of requests."""
    if models is None:
        models = DEFAULT_MODEL
    if isinstance(models, Mapping):
        pairs = [(name, str(source)) for name, source in models.items()]
    else:
        listed = [models] if isinstance(models, str | Path) else list(models)
        pairs = [_split(str(source)) for source in listed or [DEFAULT_MODEL]]
    named: dict[str, str] = {}
    for name, source in pairs:
        if not NAME.fullmatch(name):
            raise ConfigError(
                f"a model's name has up to 64 letters, digits, dots, hyphens and underscores; got {name!r}; name it "
                "yourself: NAME=SOURCE."
            )
        if name in named:
            raise ConfigError(
                f"two models are called {name}: {named[name]} and {source}; name them yourself: NAME=SOURCE."
            )
        named[name] = source
    return named


def _split(text: str) -> tuple[str, str]:
    """`NAME=SOURCE`, or a source from which the name is taken; a path that exists is a source."""
    name, equals, source = text.partition("=")
    if equals and NAME.fullmatch(name) and source and not Path(text).exists():
        return name, source
    return name_of_source(text), text


def name_of_source(source: str) -> str:
    """What people would call a model: runs/train-1 → train-1, hf://google/vit@main → vit, model.onnx → model."""
    plain = re.sub(r"^[a-z]+://", "", source).partition("@")[0]
    parts = [part for part in Path(plain).parts if part not in ("/", ".", "..")]
    stems = [re.sub(r"\.(safetensors|npz|onnx|xml)$", "", part) for part in parts[-3:]]
    telling = [stem for stem in stems if stem not in GENERIC]
    name = (telling or stems or ["model"])[-1]
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-._")[:64] or "model"
