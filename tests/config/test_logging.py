"""Log lines are JSON, with the context of the request and without what nobody put there."""

import io
import json
import logging
import sys

import pytest
from django.core.exceptions import PermissionDenied
from django.test import Client

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


@pytest.mark.django_db
@pytest.mark.parametrize(
    "path", ["/join/{}", "/accounts/password/reset/key/1-{}/", "/accounts/confirm-email/{}/", "/files/{}", "/withdraw/{}"]
)
def test_what_opens_a_door_by_standing_in_a_path_is_in_no_line(path: str) -> None:
    """Django logs the path of what it refuses, here for the token of a form that lacks, and for what it does not find."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(weir_logging.JsonFormatter())
    logger = logging.getLogger("django")
    logger.addHandler(handler)
    try:
        link = path.format("mzskO0ty4UM_9U_S7GEUNw3oO4ddC8")
        Client(enforce_csrf_checks=True, raise_request_exception=False).post(link, {"password": "short"})
        Client(raise_request_exception=False).put(link)
        Client(raise_request_exception=False).get(f"{link}?next={link}")
        logging.getLogger("django.request").error(
            "Internal Server Error: %s", link, extra={"request": f"<ASGIRequest: GET '{link}'>"}
        )
    finally:
        logger.removeHandler(handler)
    written = stream.getvalue()
    assert path.partition("{")[0].rstrip("1-") in written
    assert "mzskO0ty" not in written
    assert all(json.loads(one)["message"] for one in written.splitlines())


@pytest.mark.parametrize(("name", "status", "is_told"), [
    ("django.request", 403, False), ("django.request", 500, True), ("weir.test", None, True),
])  # fmt: skip
def test_a_refusal_for_want_of_rights_is_one_line_without_its_traceback(name: str, status: int | None, is_told: bool) -> None:
    try:
        raise PermissionDenied("hidden")
    except PermissionDenied:
        record = logging.LogRecord(name, logging.WARNING, __file__, 1, "Forbidden: /o/acme/pool", (), sys.exc_info())
    record.__dict__["status_code"] = status
    written = dict(json.loads(weir_logging.JsonFormatter().format(record)))
    assert written["message"] == "Forbidden: /o/acme/pool"
    assert ("Traceback" in written.get("exception", "")) is is_told
