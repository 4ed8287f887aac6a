"""Log lines are JSON, with the context of the request and without what nobody put there."""

import json
import logging

from config import logging as weir_logging


def line(**extra: object) -> dict[str, object]:
    record = logging.LogRecord("weir.test", logging.WARNING, __file__, 1, "hold released", (), None)
    record.__dict__.update(extra)
    return dict(json.loads(weir_logging.JsonFormatter().format(record)))


def test_a_line_holds_message_level_and_extra() -> None:
    assert line(hold="h1") | {"time": None} == {
        "time": None,
        "level": "warning",
        "logger": "weir.test",
        "message": "hold released",
        "hold": "h1",
    }


def test_the_context_is_added_and_ends() -> None:
    with weir_logging.context(request_id="req_1"), weir_logging.context(organization_id=7):
        inside = line()
    assert (inside["request_id"], inside["organization_id"]) == ("req_1", 7)
    assert "request_id" not in line()
