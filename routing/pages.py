"""The page behind a person's link: what would be taken out, and the button that does it. Who holds the link needs no sign-in."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from routing import withdrawal
from routing.errors import LinkInvalid


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def withdraw(request: HttpRequest, token: str) -> HttpResponse:
    """Shows what the link takes out; a POST does it. A mail reader that opens links takes out nothing."""
    try:
        offer = withdrawal.look_up(token)
        if request.method == "POST":
            withdrawal.withdraw_by_link(token)
    except LinkInvalid as error:
        return render(request, "routing/withdraw.html", {"offer": None, "error": error.message}, status=error.status)
    return render(request, "routing/withdraw.html", {"offer": offer, "is_done": request.method == "POST"})
