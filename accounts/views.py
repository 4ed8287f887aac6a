"""The way in: `/` and an organization's front door lead to the first question of one's role."""

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from accounts import context, tenancy
from accounts.models import Member, User


@never_cache
@require_safe
@login_required
def home(request: HttpRequest) -> HttpResponse:
    """To the organization last used; operators without one go to the admin."""
    member = tenancy.last_used(request)
    if member is not None:
        return redirect(context.first_page(member), slug=member.organization.slug)
    if isinstance(request.user, User) and request.user.is_superuser:
        return redirect("admin:index")
    return render(request, "accounts/nowhere.html")


@require_safe
@tenancy.page()
def organization(request: HttpRequest, member: Member) -> HttpResponse:
    return redirect(context.first_page(member), slug=member.organization.slug)
