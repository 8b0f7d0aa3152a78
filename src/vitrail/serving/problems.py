"""What a client is told when a request cannot be answered: a status, a code for programs, a message, and a hint."""

from dataclasses import dataclass
from typing import Any

# Code → status, and what to do. Everything that the service can answer with stands here, and in /openapi.json.
CODES: dict[str, tuple[int, str]] = {
    "unreadable_picture": (400, "Send a complete JPEG, PNG or WebP file."),
    "unreadable_body": (400, "See /openapi.json for the bodies that are understood."),
    "invalid_request": (400, "Send one well-formed HTTP/1.1 request at a time."),
    "unauthorized": (401, "Send the header `Authorization: Bearer TOKEN`."),
    "forbidden": (403, "Send requests from this machine to localhost, or use the service's own page."),
    "not_found": (404, "See /openapi.json for the addresses of this service."),
    "unknown_model": (404, "See /v1/models for the models of this service."),
    "method_not_allowed": (405, "See the header Allow, and /openapi.json."),
    "request_timeout": (408, "Send the whole request without long pauses."),
    "too_large": (413, "Shrink the picture, or send fewer at once."),
    "unsupported_format": (415, "Send JPEG, PNG or WebP: as the body, as multipart/form-data, or as base64 in JSON."),
    "invalid_argument": (422, "See /openapi.json for the arguments and their values."),
    "cannot_explain": (422, "See /v1/models for what each model can explain."),
    "rate_limited": (429, "Wait as long as Retry-After says."),
    "headers_too_large": (431, "Send fewer or shorter headers, and a shorter address."),
    "model_failed": (
        500,
        "The picture was read, but the model gave no usable answer; look at the service's error log.",
    ),
    "internal_error": (500, "This is a mistake in vitrail; please report it with the request's id."),
    "queue_full": (503, "Wait as long as Retry-After says, or send fewer pictures at once."),
    "not_ready": (503, "Wait as long as Retry-After says; /v2/health/ready tells when the model is ready."),
    "too_many_connections": (503, "Wait as long as Retry-After says, and reuse connections."),
    "timeout": (504, "Send fewer pictures at once, or raise the service's timeout."),
}


@dataclass(eq=False)
class Problem(Exception):  # noqa: N818 - it is also an entry of an answer
    """Why a request, or one of its pictures, has no answer."""

    code: str
    message: str
    hint: str = ""
    retry_after: int | None = None  # seconds
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def status(self) -> int:
        return CODES[self.code][0]

    def entry(self) -> dict[str, Any]:
        """As it stands under "error"."""
        return {"code": self.code, "message": self.message, "hint": self.hint or CODES[self.code][1]}

    def extra_headers(self) -> list[tuple[str, str]]:
        """What its answer says beside the usual headers."""
        retry = [] if self.retry_after is None else [("retry-after", str(self.retry_after))]
        return [*self.headers, *retry]
