"""RequestContextMiddleware: gives every Django request an id for logs and answers."""

import secrets
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

from config import logging as weir_logging


class RequestContextMiddleware:
    """Sets the log context; a client's own X-Request-Id is not believed."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        request_id = "page_" + secrets.token_hex(8)
        with weir_logging.context(request_id=request_id):
            response = self.get_response(request)
        response["X-Request-Id"] = request_id
        return response
