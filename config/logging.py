"""JSON log lines on standard error, with request_id and organization_id from a context variable."""

import json
import logging
import logging.config
import re
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

_context: ContextVar[Mapping[str, Any]] = ContextVar("weir_log_context", default={})  # noqa: B039 (never mutated)

_IN_PATHS = re.compile(r"""(/join/|/files/|/withdraw/|/password/reset/key/|/confirm-email/)[^\s/?"'\\<>]+""")
"""What stands behind these opens a door for whoever reads it; Django logs the path of every refused request."""

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class context:
    """Adds `values` to every line logged inside, in this task or thread."""

    __slots__ = ("_token", "_values")

    def __init__(self, **values: Any) -> None:
        self._values = values

    def __enter__(self) -> None:
        self._token = _context.set({**_context.get(), **self._values})

    def __exit__(self, *error: object) -> None:
        _context.reset(self._token)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, context, extra; exceptions as text."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_context.get(),
        }
        line.update((name, value) for name, value in vars(record).items() if name not in _STANDARD)
        if record.exc_info and not _is_expected(record):
            line["exception"] = self.formatException(record.exc_info)
        return _IN_PATHS.sub(r"\1…", json.dumps(line, default=str, ensure_ascii=False))


def _is_expected(record: logging.LogRecord) -> bool:
    """A refusal for want of rights: Django raises it through every layer, and its traceback says no more than its line."""
    return record.name == "django.request" and getattr(record, "status_code", None) == 403


def configure(options: Mapping[str, Any]) -> None:
    """LOGGING_CONFIG of the settings."""
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"json": {"()": JsonFormatter}},
            "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json"}},
            "root": {"level": options.get("level", "INFO"), "handlers": ["stderr"]},
            "loggers": {
                # Their INFO lines hold URLs of token endpoints and query strings.
                "httpx": {"level": "WARNING"},
                "httpcore": {"level": "WARNING"},
                "uvicorn.error": {"level": "INFO"},
                "celery": {"level": "INFO"},
            },
        }
    )
