"""Organizations: how they begin, are set, pause and go on. A slug never changes once it is given.

Every change is locked, audited and, where the request path goes by it, published. A second time changes nothing.
"""

import re
import unicodedata
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from accounts import audit, names
from accounts.errors import NotFound, OrganizationError, ZoneUnknown
from accounts.models import Organization, User
from config import snapshot

SLUG_LENGTH = 63
RESERVED_SLUGS = frozenset({"new", "none", "admin", "api"})


def create(name: str, *, by: User | None, timezone: str = "UTC") -> Organization:
    """A new tenant, active, without members and without a subscription: the door adds both in the same transaction.

    Raises NameInvalid, ZoneUnknown.
    """
    name = names.checked(name, what=_("An organization's name"), longest=120)
    zone = checked_zone(timezone)
    with transaction.atomic():
        organization = _insert(name, zone)
        audit.record(
            organization,
            actor=by,
            action="organization.created",
            object_type="organization",
            object_id=str(organization.uuid),
            data={"slug": organization.slug, "timezone": zone},
        )
    return organization


def rename(organization: Organization, name: str, *, by: User | None) -> Organization:
    """The slug, and with it every address, stays. Raises NameInvalid."""
    name = names.checked(name, what=_("An organization's name"), longest=120)
    # The path names it in what it tells.
    return _set(organization, "name", name, action="organization.renamed", by=by, is_path=True)


def set_zone(organization: Organization, timezone: str, *, by: User | None) -> Organization:
    """The zone alone: counters and periods follow by `quotas.zones.change`, which calls this. Raises ZoneUnknown."""
    return _set(organization, "timezone", checked_zone(timezone), action="organization.zone_changed", by=by, is_path=True)


def set_unpriced_models(organization: Organization, rule: str, *, by: User | None) -> Organization:
    """What becomes of requests for models without a rate, from the next one on. Raises OrganizationError."""
    if rule not in Organization.UnpricedModels.values:
        raise OrganizationError(
            _("%(rule)r is not a rule for unpriced models: %(values)s.")
            % {"rule": rule[:40], "values": " or ".join(Organization.UnpricedModels.values)}
        )
    return _set(organization, "unpriced_models", rule, action="organization.unpriced_models", by=by, is_path=True)


def show_pool_to_developers(organization: Organization, is_shown: bool, *, by: User | None) -> Organization:
    """May developers look at the pool: its windows and states? Pages ask at every request; the path does not."""
    return _set(organization, "developers_see_pool", is_shown, action="organization.developers_see_pool", by=by, is_path=False)


def suspend(organization: Organization, *, by: User | None) -> Organization:
    """All keys of the organization are refused from the next request on. A second time changes nothing."""
    return _set_active(organization, is_active=False, by=by)


def resume(organization: Organization, *, by: User | None) -> Organization:
    """The keys that were neither revoked nor have expired work again. A second time changes nothing."""
    return _set_active(organization, is_active=True, by=by)


def find(slug: str) -> Organization:
    """Raises NotFound."""
    organization = Organization.objects.filter(slug=slug).first()
    if organization is None:
        raise NotFound(_("There is no organization with the slug %(slug)r.") % {"slug": slug})
    return organization


@cache
def known_zones() -> frozenset[str]:
    """The names of the tz database, read once: it is some 30 ms of walking through files."""
    return frozenset(available_timezones())


def checked_zone(timezone: str) -> str:
    """The name of a zone of the tz database, spelled as it spells it. Raises ZoneUnknown."""
    if timezone not in known_zones():
        raise ZoneUnknown(
            _("%(timezone)r is not a time zone, such as Europe/Berlin or UTC.") % {"timezone": timezone}, timezone=timezone
        )
    return ZoneInfo(timezone).key


def slug_of(name: str) -> str:
    """Letters a to z, digits and single hyphens; `organization` when the name holds none of them."""
    ascii_name = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    slug = re.sub(r"[^a-z0-9]+", "-", ascii_name).strip("-")[:SLUG_LENGTH].strip("-")
    return slug if slug and slug not in RESERVED_SLUGS else f"organization-{slug}".strip("-")


def _insert(name: str, zone: str) -> Organization:
    """Takes the first free one of `acme`, `acme-2`, `acme-3`, …; two who race for one get two."""
    base = slug_of(name)
    number = 1
    while True:
        suffix = "" if number == 1 else f"-{number}"
        slug = base[: SLUG_LENGTH - len(suffix)].rstrip("-") + suffix
        if not Organization.objects.filter(slug=slug).exists():
            try:
                with transaction.atomic():
                    return Organization.objects.create(name=name, slug=slug, timezone=zone)
            except IntegrityError:
                if not Organization.objects.filter(slug=slug).exists():
                    raise
        number += 1


def _set(organization: Organization, field: str, value: Any, *, action: str, by: User | None, is_path: bool) -> Organization:
    """One column, with what it was and is in the audit trail. Returns the row as it now is."""
    with transaction.atomic():
        organization = Organization.objects.select_for_update(no_key=True).get(pk=organization.pk)
        before = getattr(organization, field)
        if before != value:
            setattr(organization, field, value)
            organization.save(update_fields=[field])
            audit.record(
                organization,
                actor=by,
                action=action,
                object_type="organization",
                object_id=str(organization.uuid),
                data={"before": before, "after": value},
            )
            if is_path:
                organization.config_version = snapshot.bump(organization.pk)
    return organization


def _set_active(organization: Organization, *, is_active: bool, by: User | None) -> Organization:
    with transaction.atomic():
        organization = Organization.objects.select_for_update(no_key=True).get(pk=organization.pk)
        if organization.is_active != is_active:
            organization.is_active = is_active
            organization.save(update_fields=["is_active"])
            audit.record(
                organization,
                actor=by,
                action="organization.resumed" if is_active else "organization.suspended",
                object_type="organization",
                object_id=str(organization.uuid),
            )
            organization.config_version = snapshot.bump(organization.pk)
    return organization
