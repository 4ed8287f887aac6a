"""Teams: by name, made when first named."""

from django.db import transaction
from django.utils.translation import gettext as _

from accounts import audit, names
from accounts.errors import NameInvalid, NotFound
from accounts.models import Organization, Team, User
from config import snapshot


def named(organization: Organization, name: str, *, by: User | None) -> Team:
    """The organization's team of this name (compared without case), made if there is none. Raises NameInvalid."""
    name = names.checked(name, what=_("A team's name"), longest=80)
    with transaction.atomic():
        Organization.objects.select_for_update(no_key=True).get(pk=organization.pk)
        team = Team.objects.filter(organization=organization, name__iexact=name).first()
        if team is None:
            team = Team.objects.create(organization=organization, name=name)
            audit.record(
                organization, actor=by, action="team.created", object_type="team", object_id=str(team.uuid), data={"name": name}
            )
    return team


def create(organization: Organization, name: str, *, by: User | None) -> Team:
    """A new team. Raises NameInvalid, also when a team of the organization has the name."""
    name = names.checked(name, what=_("A team's name"), longest=80)
    with transaction.atomic():
        Organization.objects.select_for_update(no_key=True).get(pk=organization.pk)
        if Team.objects.filter(organization=organization, name__iexact=name).exists():
            raise NameInvalid(_("There is a team %(name)s already.") % {"name": name})
        return named(organization, name, by=by)


def find(organization: Organization, name: str) -> Team:
    """The organization's team of this name. Raises NotFound, which names the teams there are."""
    team = Team.objects.filter(organization=organization, name__iexact=name.strip()).first()
    if team is None:
        known = ", ".join(Team.objects.filter(organization=organization).values_list("name", flat=True)) or "none yet"
        raise NotFound(
            _("There is no team %(name)r in this organization. Teams: %(known)s.") % {"name": name.strip(), "known": known}
        )
    return team


def rename(team: Team, name: str, *, by: User | None) -> Team:
    """Raises NameInvalid, also when another team of the organization has the name."""
    name = names.checked(name, what=_("A team's name"), longest=80)
    with transaction.atomic():
        organization = Organization.objects.select_for_update(no_key=True).get(pk=team.organization_id)
        if Team.objects.filter(organization=organization, name__iexact=name).exclude(pk=team.pk).exists():
            raise NameInvalid(_("Another team is called %(name)s.") % {"name": name})
        team = Team.objects.get(pk=team.pk)
        before, team.name = team.name, name
        team.save(update_fields=["name"])
        audit.record(
            organization,
            actor=by,
            action="team.renamed",
            object_type="team",
            object_id=str(team.uuid),
            data={"before": before, "after": name},
        )
        # Refusals name the team.
        snapshot.bump(organization.pk)
    return team
