"""The identity provider of an organization: set up and taken away, found for a sign-in, and whom it lets in as what.

A person is known by the provider's `sub` (a link, `SocialAccount`: provider = the row's uuid, uid = sub). The first time, a link is
made for the address, if the provider has verified it and it is of the organization's domains. What a session so begun reaches is
told in `accounts.vouching`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from allauth.socialaccount.models import SocialAccount
from django.db import transaction
from django.db.models import QuerySet
from django.http import Http404
from django.utils.translation import gettext as _

from accounts import audit, factors, identity_http, members, names, vouching
from accounts.errors import LastOwner, NameInvalid, ProviderInvalid, ProviderUnreachable, SignInRefused
from accounts.identity_tokens import WELL_KNOWN, Claims
from accounts.models import IdentityProvider, Member, Organization, User
from config import scope, sealing

RANKS = (Member.Role.OWNER, Member.Role.LEAD, Member.Role.FINANCE, Member.Role.DEVELOPER)
"""The highest first: who is in several groups gets the first of these that one of them stands for."""
MOST_DOMAINS = 50
MOST_VALUES = 200
LONGEST_SUBJECT = 191
_DOMAIN = re.compile(r"(?=.{4,253}\Z)(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z](?:[a-z0-9-]{0,61}[a-z0-9])")


class SignInElsewhere(Http404):
    """The membership is there, and its organization lets the person in by its provider only."""

    def __init__(self, provider: IdentityProvider) -> None:
        super().__init__("Sign in with your organization's provider.")
        self.provider = provider


@dataclass(frozen=True, slots=True)
class Asked:
    """Settings of a provider. `client_secret` None: as it is. `role_map`: value of the claim -> role."""

    name: str
    issuer: str
    client_id: str
    client_secret: str | None = field(repr=False)
    email_domains: tuple[str, ...]
    role_claim: str = ""
    role_map: Mapping[str, str] = field(default_factory=dict)
    default_role: str = ""
    is_active: bool = True
    is_required: bool = False


@dataclass(frozen=True, slots=True)
class Admitted:
    """Whom the provider has let in."""

    user: User
    member: Member
    link: SocialAccount


# ----------------------------------------------------------------------------------------------------------- setting up


def of(organization: Organization) -> IdentityProvider | None:
    return IdentityProvider.objects.filter(organization=organization).first()


def set_provider(organization: Organization, asked: Asked, *, by: User | None) -> IdentityProvider:
    """Sets the organization's provider up, or changes it. With another issuer or client all links to persons end, and their
    sessions with them. Looks the issuer's host up. Raises ProviderInvalid, and then nothing has changed.
    """
    checked = _checked(asked)
    with transaction.atomic():
        organization = Organization.objects.select_for_update(no_key=True).get(pk=organization.pk)
        row = of(organization)
        before = {} if row is None else _told(row)
        is_another = row is not None and (row.issuer, row.client_id) != (checked.issuer, checked.client_id)
        row = row or IdentityProvider(organization=organization)
        if is_another and row.client_secret and checked.client_secret is None:
            raise ProviderInvalid(_("Enter the client secret again: the issuer or the client has changed."), field="client_secret")
        if is_another:
            SocialAccount.objects.filter(provider=str(row.uuid)).delete()
        for name in _FIELDS:
            setattr(row, name, getattr(checked, name))
        row.email_domains, row.role_map = list(checked.email_domains), dict(checked.role_map)
        if checked.client_secret is not None:
            row.client_secret = sealing.seal(checked.client_secret, row=row.uuid, field="client_secret")
        row.save()
        after = _told(row)
        changed = {name: [before.get(name), value] for name, value in after.items() if before.get(name) != value}
        if checked.client_secret is not None:
            changed["client_secret"] = ["", "changed"]
        if changed:
            _audit(row, "set", by, changed=changed)
    return row


def remove_provider(organization: Organization, *, by: User | None) -> None:
    """Takes it away with its secret and its links; sessions that it vouched for end. Without one nothing happens."""
    with transaction.atomic():
        Organization.objects.select_for_update(no_key=True).get(pk=organization.pk)
        row = of(organization)
        if row is None:
            return
        SocialAccount.objects.filter(provider=str(row.uuid)).delete()
        _audit(row, "removed", by, issuer=row.issuer)
        row.delete()


def secret_of(row: IdentityProvider) -> str:
    """Raises config.sealing.Broken."""
    return sealing.unseal(row.client_secret, row=row.uuid, field="client_secret")


_FIELDS = ("name", "issuer", "client_id", "email_domains", "role_claim", "role_map", "default_role", "is_active", "is_required")


def _told(row: IdentityProvider) -> dict[str, Any]:
    return {name: getattr(row, name) for name in _FIELDS}


def _audit(row: IdentityProvider, what: str, by: User | None, **data: Any) -> None:
    audit.record(
        row.organization,
        actor=by,
        action=f"identity_provider.{what}",
        object_type="identity_provider",
        object_id=str(row.uuid),
        data=data,
    )


def _checked(asked: Asked) -> Asked:
    try:
        name = names.checked(asked.name, what=_("The name"), longest=40)
    except NameInvalid as error:
        raise ProviderInvalid(error.message, field="name") from None
    client_id = asked.client_id.strip()
    if not client_id or len(client_id) > 191 or not client_id.isprintable():
        raise ProviderInvalid(_("The client id is what the provider calls this Weir: 1 to 191 characters."), field="client_id")
    if asked.client_secret is not None and (len(asked.client_secret) > 1000 or not asked.client_secret.isprintable()):
        raise ProviderInvalid(_("The client secret has at most 1,000 characters, on one line."), field="client_secret")
    claim = asked.role_claim.strip()
    if len(claim) > 80 or not claim.isprintable():
        raise ProviderInvalid(_("The claim’s name has at most 80 characters."), field="role_claim")
    if asked.role_map and not claim:
        raise ProviderInvalid(_("Name the claim that holds the groups, such as groups."), field="role_claim")
    if not claim and not asked.default_role:
        raise ProviderInvalid(_("Nobody could come in: name a claim that holds groups, or everybody’s role."), field="default_role")
    if asked.default_role and asked.default_role not in Member.Role.values:
        raise ProviderInvalid(_("That is not a role."), field="default_role")
    return Asked(
        name=name,
        issuer=_checked_issuer(asked.issuer),
        client_id=client_id,
        client_secret=asked.client_secret,
        email_domains=_checked_domains(asked.email_domains),
        role_claim=claim,
        role_map=_checked_map(asked.role_map),
        default_role=asked.default_role,
        is_active=asked.is_active,
        is_required=asked.is_required,
    )


def _checked_issuer(issuer: str) -> str:
    issuer = issuer.strip()
    if issuer.endswith(WELL_KNOWN):
        issuer = issuer.removesuffix(WELL_KNOWN)
    if len(issuer) > 300 or "?" in issuer:
        raise ProviderInvalid(_("The issuer is an address of at most 300 characters without “?”."), field="issuer")
    try:
        return identity_http.checked(issuer, name="The issuer")
    except ProviderUnreachable as error:
        raise ProviderInvalid(error.message, field="issuer") from None


def _checked_domains(domains: Iterable[str]) -> tuple[str, ...]:
    found = list(dict.fromkeys(domain.strip().lower().lstrip("@") for domain in domains if domain.strip()))
    for domain in found:
        if not _DOMAIN.fullmatch(domain):
            raise ProviderInvalid(
                _("%(domain)r is no domain of e-mail addresses, such as example.com.") % {"domain": domain[:80]},
                field="email_domains",
            )
    if not 1 <= len(found) <= MOST_DOMAINS:
        raise ProviderInvalid(
            _("Name the domains of your people’s addresses: 1 to %(most_domains)s.") % {"most_domains": MOST_DOMAINS},
            field="email_domains",
        )
    return tuple(found)


def _checked_map(role_map: Mapping[str, str]) -> dict[str, str]:
    if len(role_map) > MOST_VALUES:
        raise ProviderInvalid(_("At most %(most_values)s groups can be mapped.") % {"most_values": MOST_VALUES}, field="role_map")
    for value, role in role_map.items():
        if not value or len(value) > 200 or not value.isprintable() or role not in Member.Role.values:
            raise ProviderInvalid(_("A group has 1 to 200 characters and stands for one of the four roles."), field="role_map")
    return dict(role_map)


# -------------------------------------------------------------------------------------------------------------- finding


def by_slug(slug: str) -> IdentityProvider | None:
    """The active provider of the organization with this slug."""
    with scope.everything():
        return _active().filter(organization__slug=slug).first()


def by_email(email: str) -> list[IdentityProvider]:
    """The active providers that say they speak for the address. A domain is proven by nobody, so there may be several."""
    domain = domain_of(email)
    with scope.everything():
        return list(_active().filter(email_domains__contains=[domain]).order_by("name", "pk")[:10]) if domain else []


def domain_of(email: str) -> str:
    return email.strip().lower().rpartition("@")[2]


def demanded_of(member: Member) -> IdentityProvider | None:
    """The provider that the member must sign in with instead of a password, or None. Owners keep theirs as the way back."""
    row = getattr(member.organization, "identity_provider", None)
    if row is None or not row.is_active or not row.is_required or member.role == Member.Role.OWNER or member.user is None:
        return None
    return row if domain_of(member.user.email) in row.email_domains else None


def instead_of_password(user: User) -> IdentityProvider | None:
    """The provider that all organizations of the person send them to, or None if a password opens any (or they have none).

    One organization alone cannot keep a person of another out.
    """
    if user.is_staff or user.is_superuser:
        return None
    with scope.everything():
        rows = vouching.reachable(user).select_related("organization__identity_provider", "user")
        demanded = [demanded_of(row) for row in rows]
    return demanded[0] if demanded and None not in demanded else None


def _active() -> QuerySet[IdentityProvider]:
    return IdentityProvider.objects.filter(is_active=True).select_related("organization")


# -------------------------------------------------------------------------------------------------------------- letting in


def decide(row: IdentityProvider, values: Mapping[str, Any]) -> str | None:
    """The role that the claims give, the highest of several; None if roles are not mapped. Raises SignInRefused without one."""
    if not row.role_claim:
        return None
    mapped = {row.role_map.get(value) for value in groups(values, row.role_claim)}
    role = next((role for role in RANKS if role in mapped), None) or row.default_role
    if not role:
        raise SignInRefused(
            _("%(name)s names no group of yours that has a role here. Ask its administrator to add you to one, then sign in again.")
            % {"name": row.name}
        )
    return str(role)


def groups(values: Mapping[str, Any], claim: str) -> list[str]:
    """The values of a claim; `a.b` is looked up as it is, and then as b in a."""
    found: Any = values.get(claim)
    if found is None and "." in claim:
        found = values
        for part in claim.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
    return [str(one) for one in (found if isinstance(found, list) else [found]) if isinstance(one, str)]


def admit(row: IdentityProvider, claims: Claims, *, now: datetime) -> Admitted:
    """Lets the person in whom the provider names, all or nothing: the first time as a new member, unless they are one.

    Their role becomes what the claims say; the last owner stays one. Raises SignInRefused, which tells why not.
    """
    role = decide(row, claims.values)
    email = _checked_address(row, claims)
    with scope.organization(row.organization_id), transaction.atomic(), audit.acting(f"{row.name} (sign-in provider)"):
        # Whoever changes the provider, or the members, holds this row.
        Organization.objects.select_for_update(no_key=True).get(pk=row.organization_id)
        if not IdentityProvider.objects.filter(pk=row.pk, is_active=True).exists():
            raise SignInRefused(_("Sign-in with %(name)s is switched off.") % {"name": row.name})
        link = SocialAccount.objects.filter(provider=str(row.uuid), uid=claims.subject).first()
        user = _locked_person(row, email, link)
        member = Member.objects.filter(organization_id=row.organization_id).current().filter(user=user).first()
        _check_known(row, user, member, link)
        if member is None:
            member = _joined(row, user, role or row.default_role, claims.name)
        elif role is not None and role != member.role:
            member = _changed(member, role, row, now)
        link = _linked(row, claims.subject, user, member, link)
        if member.is_awaited:
            # They have come, by the provider. Their password still has to come by the link.
            member.is_awaited, member.is_vouched = False, True
            member.save(update_fields=["is_awaited", "is_vouched"])
    return Admitted(user, member, link)


def _checked_address(row: IdentityProvider, claims: Claims) -> str:
    if not claims.subject or len(claims.subject) > LONGEST_SUBJECT:
        raise SignInRefused(_("%(name)s names you by an id that cannot be kept.") % {"name": row.name})
    if not claims.email:
        raise SignInRefused(
            _("%(name)s does not say that your e-mail address is verified. Verify it there, then sign in again.")
            % {"name": row.name}
        )
    if domain_of(claims.email) not in row.email_domains:
        raise SignInRefused(
            _("%(email)s is not of a domain that %(name)s may speak for: %(email_domains)s.")
            % {"email": claims.email, "name": row.name, "email_domains": ", ".join(row.email_domains)}
        )
    return members.checked_email(claims.email)


def _locked_person(row: IdentityProvider, email: str, link: SocialAccount | None) -> User:
    user = User.objects.get(pk=link.user_id) if link is not None else members.person(email)
    user = User.objects.select_for_update(no_key=True).get(pk=user.pk)
    if user.is_staff or user.is_superuser:
        raise SignInRefused(_("Operators of this Weir sign in with their password."))
    if not user.is_active:
        raise SignInRefused(_("This account is switched off. Ask the operator of this Weir."))
    return user


def _check_known(row: IdentityProvider, user: User, member: Member | None, link: SocialAccount | None) -> None:
    """Who was removed comes back by an invitation only; an address that the provider gave to somebody else opens nothing."""
    known = SocialAccount.objects.filter(provider=str(row.uuid), user=user)
    if member is None:
        if known.exists():
            raise SignInRefused(_("You have been removed from this organization. Ask one of its owners to invite you again."))
    elif link is None and known.filter(date_joined__gte=member.joined_at).exists():
        raise SignInRefused(
            _("Somebody else of %(name)s signs in with this address already. Ask an owner to remove that member first.")
            % {"name": row.name}
        )


def _linked(row: IdentityProvider, subject: str, user: User, member: Member, link: SocialAccount | None) -> SocialAccount:
    """The person's link to the provider; made anew for who has become a member since the last one was."""
    if link is not None and link.date_joined >= member.joined_at:
        return link
    SocialAccount.objects.filter(provider=str(row.uuid), user=user).delete()
    made = SocialAccount.objects.create(provider=str(row.uuid), uid=subject, user=user, extra_data={})
    audit.record(
        row.organization,
        actor=None,
        action="member.linked",
        object_type="member",
        object_id=str(member.uuid),
        data={"identity_provider": str(row.uuid)},
    )
    return made


def _joined(row: IdentityProvider, user: User, role: str, name: str) -> Member:
    if not role:
        raise SignInRefused(
            _("%(name)s lets in members only. Ask an owner to invite you, then sign in again.") % {"name": row.name}
        )
    try:
        name = names.checked(name, what=_("A person's name"), longest=120) if name else ""
    except NameInvalid:
        name = ""
    had_way_in = user.has_usable_password() or factors.has_one(user.pk)
    member = members.add(row.organization, user.email, role=role, by=None, name=name)
    # Whose password or passkey it is, nobody here knows: another organization's link may have led to it.
    member.is_vouched = had_way_in
    member.save(update_fields=["is_vouched"])
    return member


def _changed(member: Member, role: str, row: IdentityProvider, now: datetime) -> Member:
    team = None if role == Member.Role.OWNER else member.team
    try:
        return members.change(member, role=role, team=team, by=None, now=now)
    except LastOwner:
        audit.record(
            row.organization,
            actor=None,
            action="member.kept_owner",
            object_type="member",
            object_id=str(member.uuid),
            data={"role_by_provider": role},
        )
        return member


def host_of(row: IdentityProvider) -> str:
    """The issuer's host, which a person sees next."""
    return urlsplit(row.issuer).hostname or row.issuer
