"""Settings: what holds for the whole organization. For owners; everybody else has their own API tokens."""

import html
import re
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from accounts import api_tokens, audit, keys, trail
from accounts.models import ApiToken, AuditEvent, Member, Organization
from billing.models import SubscriptionPeriod
from billing.periods import day_start
from config import snapshot
from config.clock import utc_now
from quotas import audit_sentences, filters, limits, model_rules
from quotas.models import Limit
from routing import fallbacks, terms
from routing.errors import TermsNotAccepted
from tests import factories, secrets
from tests.pages import made

pytestmark = pytest.mark.django_db(transaction=True)

PAGES = ("", "/sign-in", "/models", "/audit", "/audit.csv")
POSTS = ("/name", "/zone", "/unpriced", "/pool", "/terms", "/sign-in/policy", "/models/fallback", "/models/block")


@pytest.fixture
def owner() -> Member:
    return factories.member(factories.organization(), role="owner")


def get(member: Member, part: str = "", **query: str) -> Any:
    return made.signed_in(member).get(made.path(member, f"settings{part}"), query)


def post(member: Member, part: str, **fields: Any) -> Any:
    return made.signed_in(member).post(made.path(member, f"settings{part}"), fields, follow=True)


def text(page: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def shown(answered: Any) -> str:
    return text(answered.content.decode().split("<main")[1])


def actions(organization: Organization) -> list[str]:
    return list(AuditEvent.objects.filter(organization=organization).order_by("pk").values_list("action", flat=True))


class TestWho:
    @pytest.mark.parametrize("role", ["developer", "lead", "finance"])
    def test_all_but_the_tokens_are_an_owners(self, owner: Member, role: str) -> None:
        other = factories.member(owner.organization, role=role)
        before = Organization.objects.filter(pk=owner.organization_id).values().get()
        told = actions(owner.organization)
        for part in PAGES:
            assert get(other, part).status_code == 403, part
        for part in POSTS:
            answered = post(other, part, name="x", zone="Asia/Tokyo", rule="fallback", shown="1", accept="1", policy="everyone")
            assert answered.status_code == 403, part
        assert Organization.objects.filter(pk=owner.organization_id).values().get() == before | {
            "config_version": before["config_version"]
        }
        assert actions(owner.organization) == told
        assert get(other, "/tokens").status_code == 200

    def test_the_navigation_has_it_and_marks_it_on_each_of_its_pages(self, owner: Member) -> None:
        for part in ("", "/sign-in", "/models", "/tokens", "/audit"):
            page = get(owner, part).content.decode()
            nav = page.split('<nav class="nav"')[1].split("</nav>")[0]
            assert re.search(rf'<a href="{made.path(owner, "settings")}" aria-current="page">', nav), part
            assert page.count('aria-current="page"') == 2, part

    def test_a_foreign_limit_and_token_are_as_missing_ones(self, owner: Member) -> None:
        foreign = factories.member(factories.organization(), role="owner")
        model_rules.block(foreign.organization, ["gpt-5.5"], by=None)
        rule = Limit.objects.get(organization=foreign.organization)
        token = api_tokens.issue(foreign, name="x", by=None, now=utc_now()).token
        assert post(owner, f"/models/{rule.uuid}/allow").status_code == 404
        assert post(owner, f"/tokens/{token.uuid}/revoke", confirm="x").status_code == 404
        token.refresh_from_db()
        assert token.revoked_at is None
        assert Limit.objects.filter(pk=rule.pk).exists()


class TestOrganization:
    def test_the_first_sentence_tells_how_it_stands(self, owner: Member) -> None:
        said = shown(get(owner))
        assert f"{owner.organization.name} counts its days in UTC. Models without a rate are refused." in said
        assert "Sign-in accounts are off until an owner accepts the terms." in said

    def test_it_is_renamed_and_keeps_its_address(self, owner: Member) -> None:
        name = factories.unique("Halden Robotics & Söhne")
        answered = post(owner, "/name", name=f" {name} ")
        assert answered.redirect_chain[-1][0] == made.path(owner, "settings")
        assert f"The organization is called {name}. Its address stays /o/{owner.organization.slug}." in shown(answered)
        owner.organization.refresh_from_db()
        assert owner.organization.name == name
        assert "organization.renamed" in actions(owner.organization)

    @pytest.mark.parametrize(
        ("name", "said"), [("", "must not be empty"), ("x" * 121, "more than 120"), ("a\u202eb", "cannot be shown")]
    )
    def test_a_name_that_cannot_be_is_told_beside_the_field(self, owner: Member, name: str, said: str) -> None:
        answered = post(owner, "/name", name=name)
        assert answered.status_code == 400
        [error] = re.findall(r'id="organization-name-error">(.*?)<', answered.content.decode())
        assert said in error
        assert "organization.renamed" not in actions(owner.organization)

    def test_a_change_of_zone_is_shown_before_it_is_made(self, owner: Member) -> None:
        row = SubscriptionPeriod.objects.get(organization=owner.organization)
        page = shown(get(owner, zone="America/New_York"))
        assert "America/New_York in place of UTC" in page
        assert "The plan’s period keeps its start and all that was used of it." in page
        assert "organization.zone_changed" not in actions(owner.organization)
        answered = post(owner, "/zone", zone="America/New_York")
        assert "Days, weeks and months are those of America/New_York from now on." in shown(answered)
        assert "Times in America/New_York" in answered.content.decode()
        before, _ = row.ends_at, row.refresh_from_db()
        assert row.ends_at == day_start(before.date(), ZoneInfo("America/New_York"))

    @pytest.mark.parametrize("zone", ["Mars/Olympus", "../../etc/passwd", "", "x" * 500])
    def test_what_is_no_zone_is_refused(self, owner: Member, zone: str) -> None:
        assert post(owner, "/zone", zone=zone).status_code == 400
        assert get(owner, zone=zone).status_code == 200
        owner.organization.refresh_from_db()
        assert owner.organization.timezone == "UTC"

    def test_models_without_a_rate(self, owner: Member) -> None:
        assert "Models without a rate are priced at the fallback rate." in shown(post(owner, "/unpriced", rule="fallback"))
        owner.organization.refresh_from_db()
        assert owner.organization.unpriced_models == "fallback"
        assert post(owner, "/unpriced", rule="free").status_code == 400
        owner.organization.refresh_from_db()
        assert owner.organization.unpriced_models == "fallback"

    def test_the_terms_are_accepted_and_withdrawn(self, owner: Member) -> None:
        page = get(owner).content.decode()
        assert "The provider&#x27;s terms of service may forbid" in page or "The provider's terms of service may forbid" in page
        assert post(owner, "/terms").status_code == TermsNotAccepted.status
        owner.organization.refresh_from_db()
        assert owner.organization.sign_in_terms_accepted_at is None
        answered = post(owner, "/terms", accept="1")
        assert f"accepted {owner.user}" not in shown(answered)
        assert str(owner.user) in shown(answered)
        owner.organization.refresh_from_db()
        assert owner.organization.sign_in_terms_accepted_by == owner.user
        assert "Withdrawn. No sign-in account joins any more" in shown(post(owner, "/terms", withdraw="1"))
        owner.organization.refresh_from_db()
        assert (owner.organization.sign_in_terms_accepted_at, owner.organization.sign_in_terms_accepted_by) == (None, None)
        with pytest.raises(TermsNotAccepted):
            terms.demand(owner.organization, accepted=False, by=None, now=utc_now())
        post(owner, "/terms", withdraw="1")
        wanted = ["organization.sign_in_terms_accepted", "organization.sign_in_terms_withdrawn"]
        assert [one for one in actions(owner.organization) if "terms" in one] == wanted


class TestSignIn:
    def test_the_policy_says_whom_it_would_touch(self, owner: Member) -> None:
        developer = factories.member(owner.organization)
        page = shown(get(owner, "/sign-in"))
        assert "Nobody needs a second factor." in page
        assert str(developer) in page
        answered = post(owner, "/sign-in/policy", policy="everyone")
        assert answered.status_code >= 400
        assert "You have no second factor yourself." in shown(answered)
        assert post(owner, "/sign-in/policy", policy="nobody").status_code == 400
        owner.organization.refresh_from_db()
        assert owner.organization.second_factor == "optional"

    def test_the_provider_stands_there(self, owner: Member) -> None:
        page = get(owner, "/sign-in").content.decode()
        assert 'id="identity"' in page
        assert f'action="{made.path(owner, "settings/identity")}"' in page


class TestModels:
    def test_a_model_is_kept_from_everybody_and_allowed_again(self, owner: Member) -> None:
        assert "No model is kept from everybody" in shown(get(owner, "/models"))
        answered = post(owner, "/models/block", models="gpt-5.5, gpt-5.5,gpt-5.6-sol ")
        assert "Nobody uses gpt-5.5, gpt-5.6-sol, within a minute." in shown(answered)
        assert "Starting, within a minute" in shown(answered)
        [rule] = model_rules.blocked(owner.organization)
        assert rule.amount == 0
        filters.fill(owner.organization.pk)
        assert "Enforced" in shown(get(owner, "/models"))
        assert "may be used again" in shown(post(owner, f"/models/{rule.uuid}/allow"))
        assert model_rules.blocked(owner.organization) == []
        assert post(owner, f"/models/{rule.uuid}/allow").status_code == 404

    def test_a_limit_that_is_none_of_these_rules_is_not_taken_away_here(self, owner: Member) -> None:
        limits.set_limit(owner.organization, scope="organization", of="", metric="credits", window="day", amount="0")
        limit = Limit.objects.get(organization=owner.organization)
        assert post(owner, f"/models/{limit.uuid}/allow").status_code == 404
        assert Limit.objects.filter(pk=limit.pk).exists()

    def test_stand_ins_are_set_changed_and_removed_in_place(self, owner: Member) -> None:
        assert "gpt-5.6-sol stands in for gpt-5.5." in shown(post(owner, "/models/fallback", model="gpt-5.5", chain="gpt-5.6-sol"))
        opened = get(owner, "/models", edit="gpt-5.5").content.decode()
        assert 'value="gpt-5.6-sol"' in opened
        changed = post(owner, "/models/fallback", model="gpt-5.5", chain="gpt-5.6-sol, gpt-5.4")
        assert "gpt-5.6-sol, gpt-5.4 stand in for gpt-5.5." in shown(changed)
        assert fallbacks.of(owner.organization) == {"gpt-5.5": ["gpt-5.6-sol", "gpt-5.4"]}
        assert "Nothing stands in for gpt-5.5 any more." in shown(post(owner, "/models/fallback", model="gpt-5.5", chain=""))
        assert fallbacks.of(owner.organization) == {}

    @pytest.mark.parametrize(
        ("part", "fields", "said"),
        [
            ("/models/fallback", {"model": "a", "chain": "a"}, "no fallback for itself"),
            ("/models/fallback", {"model": "", "chain": "a"}, "1 to 120 printable characters"),
            ("/models/fallback", {"model": "a", "chain": "b,b"}, "named twice"),
            ("/models/block", {"models": " , "}, "Name a model."),
        ],
    )
    def test_what_cannot_be_is_told_and_what_was_typed_stays(
        self, owner: Member, part: str, fields: dict[str, str], said: str
    ) -> None:
        answered = post(owner, part, **fields)
        assert 400 <= answered.status_code < 500
        assert said in shown(answered)
        assert fallbacks.of(owner.organization) == {}
        assert not Limit.objects.filter(organization=owner.organization).exists()


class TestTokens:
    @pytest.mark.parametrize("role", ["developer", "lead", "finance", "owner"])
    def test_one_is_issued_shown_once_and_revoked_by_its_name(self, owner: Member, role: str) -> None:
        member = factories.member(owner.organization, role=role)
        assert "You have no token." in shown(get(member, "/tokens"))
        answered = post(member, "/tokens/issue", name="nightly", lasts="30", scopes=["usage:read"])
        [secret] = re.findall(r"wt_[0-9A-Za-z]{10}_[0-9A-Za-z]{43}", answered.content.decode())
        secrets.register(secret, "an API token")
        assert "no-store" in answered.headers["cache-control"]
        assert secret not in get(member, "/tokens").content.decode()
        token = ApiToken.objects.get(member=member)
        assert (token.scopes, token.expires_at is not None) == (["usage:read"], True)
        assert api_tokens.verified(secret, now=utc_now()) == token
        assert "Last used not yet" in shown(get(member, "/tokens"))
        api_tokens.note_use(token, now=datetime(2026, 3, 4, 5, 6, tzinfo=UTC))
        assert "Last used Wed 4 Mar" in shown(get(member, "/tokens"))
        assert "Nothing was revoked" in shown(post(member, f"/tokens/{token.uuid}/revoke", confirm="x"))
        assert "nightly is revoked." in shown(post(member, f"/tokens/{token.uuid}/revoke", confirm="nightly"))
        assert api_tokens.verified(secret, now=utc_now()) is None
        assert "nightly" not in shown(get(member, "/tokens"))

    def test_others_tokens_are_seen_and_revoked_by_owners_alone(self, owner: Member) -> None:
        developer = factories.member(owner.organization)
        lead = factories.member(owner.organization, role="lead")
        token = api_tokens.issue(developer, name="nightly", by=None, now=utc_now()).token
        assert "nightly" not in shown(get(lead, "/tokens"))
        assert post(lead, f"/tokens/{token.uuid}/revoke", confirm="nightly").status_code == 403
        assert f"Of {developer}" in shown(get(owner, "/tokens"))
        post(owner, f"/tokens/{token.uuid}/revoke", confirm="nightly")
        token.refresh_from_db()
        assert token.revoked_at is not None

    @pytest.mark.parametrize(
        "fields",
        [
            {"name": "", "scopes": ["usage:read"]},
            {"name": "x", "scopes": ["everything"]},
            {"name": "x"},
            {"name": "x", "scopes": ["usage:read"], "lasts": "1000000"},
        ],
    )
    def test_a_wrong_one_is_not_issued(self, owner: Member, fields: dict[str, Any]) -> None:
        assert post(owner, "/tokens/issue", **fields).status_code == 422
        assert not ApiToken.objects.filter(member=owner).exists()


class TestAudit:
    def test_each_event_is_a_sentence(self, owner: Member) -> None:
        key = keys.issue(owner, name="laptop", by=owner.user, now=utc_now())
        secrets.register(key.secret, "gateway key")
        limits.set_limit(owner.organization, scope="organization", of="", metric="credits", window="day", amount="5", by=owner.user)
        page = shown(get(owner, "/audit"))
        assert f"{owner.user} issued the key laptop" in page
        assert f"{owner.user} set a limit of {owner.organization}" in page
        assert "amount 5.00" in page
        assert "operator added" in page
        assert key.secret not in page

    def test_filters_find_and_say_when_nothing_is_found(self, owner: Member) -> None:
        keys.issue(owner, name="laptop", by=owner.user, now=utc_now())
        both = shown(get(owner, "/audit", who=str(owner.user)[:8], kind="keys"))
        assert "issued the key laptop" in both
        assert "made the organization" not in both
        nothing = shown(get(owner, "/audit", who="nobody@nowhere.example"))
        assert "Nothing like this happened" in nothing
        tomorrow = (utc_now() + timedelta(days=2)).date().isoformat()
        assert "Nothing like this happened" in shown(get(owner, "/audit", **{"from": tomorrow}))
        of_one = shown(get(owner, "/audit", object=str(owner.organization.uuid)))
        assert "made the organization" in of_one
        assert "issued the key" not in of_one

    @pytest.mark.parametrize(
        "query",
        [{"from": "yesterday"}, {"to": "9999-99-99"}, {"from": "2026-11-30", "to": "2026-11-01"}, {"kind": "nonsense"}],
    )
    def test_a_wrong_filter_is_told(self, owner: Member, query: dict[str, str]) -> None:
        answered = get(owner, "/audit", **query)
        assert answered.status_code == 400
        assert "Shown is everything." in shown(answered)
        assert get(owner, "/audit.csv", **query).status_code == 400

    @pytest.mark.parametrize("place", [{"before": "x"}, {"after": "-1"}, {"before": "9" * 30}, {"before": "\0"}])
    def test_a_place_that_there_is_not_is_the_newest(self, owner: Member, place: dict[str, str]) -> None:
        assert "made the organization" in shown(get(owner, "/audit", **place))

    def test_pages_reach_every_event_once_both_ways(self, owner: Member) -> None:
        for number in range(120):
            audit.record(owner.organization, actor=owner.user, action="key.revoked", object_type="api_key", object_id=str(number))
        head = audit.head(owner.organization)

        def walk(place: str, query: dict[str, str]) -> list[int]:
            found: list[int] = []
            for _ in range(5):
                page = get(owner, "/audit", **query).content.decode()
                own = [int(number) for number in re.findall(r">(\d+)</a></td></tr>", page)]
                found = found + own if place == "before" else own + found
                link = re.findall(rf'\?{place}=(\d+)" rel=', page)
                if not link:
                    break
                query = {place: link[-1]}
            return found

        down = walk("before", {})
        assert down == list(range(head.number, 0, -1))
        assert walk("after", {"after": "1"}) == down[:-1]

    def test_the_head_is_shown_to_note_down(self, owner: Member) -> None:
        assert audit.head(owner.organization).text in get(owner, "/audit").content.decode()

    def test_the_file_holds_what_the_filter_finds_with_the_chains_links(self, owner: Member) -> None:
        keys.issue(owner, name='=cmd|"x"', by=owner.user, now=utc_now())
        answered = get(owner, "/audit.csv")
        assert answered.headers["content-type"] == "text/csv; charset=utf-8"
        assert answered.headers["content-disposition"].startswith('attachment; filename="audit-')
        lines = b"".join(answered.streaming_content).decode().split("\r\n")
        events = list(trail.events(owner.organization, trail.Sought()))
        assert lines[0].split(",")[:3] == ["number", "time_utc", "time"]
        assert lines[-2].startswith(f"total,{len(events)},")
        assert [line.split(",")[0] for line in lines[1:-2]] == [str(event.number) for event in events]
        assert lines[1].endswith(f"{events[0].uuid},{events[0].previous},{events[0].digest}")
        only = b"".join(get(owner, "/audit.csv", kind="keys").streaming_content).decode()
        assert only.count("\r\n") == 3

    def test_every_action_that_the_code_tells_has_a_sentence(self) -> None:
        """Those whose name stands in the code as a whole; others are made of parts and told by their name."""
        from pathlib import Path

        root = Path(__file__).resolve().parents[2]
        told = {
            name
            for folder in ("accounts", "billing", "quotas", "routing")
            for path in (root / folder).rglob("*.py")
            if "migrations" not in path.parts
            for name in re.findall(r'action=\(?"([a-z_]+\.[a-z_]+)"', path.read_text())
        }
        install_wide = {"ratecard.imported", "plan.made", "alias.added", "alias.ended"}
        assert told - set(audit_sentences.PHRASES) - install_wide == set()


@pytest.mark.parametrize("part", ["", "/sign-in", "/models", "/tokens", "/audit"])
def test_each_page_takes_as_many_queries_for_one_as_for_many(owner: Member, part: str) -> None:
    def asked() -> int:
        client: Client = made.signed_in(owner)
        client.get(made.path(owner, f"settings{part}"))
        with CaptureQueriesContext(connection) as queries:
            assert client.get(made.path(owner, f"settings{part}")).status_code == 200
        return len(queries)

    models = list(model_rules.names(snapshot.load(owner.organization_id), utc_now()))

    def more(count: int) -> None:
        for number in range(count):
            member = factories.member(owner.organization, team=factories.team(owner.organization))
            keys.issue(member, name=f"k{number}", by=owner.user, now=utc_now())
            api_tokens.issue(member, name=f"t{number}", by=member.user, now=utc_now())
            fallbacks.set_fallbacks(owner.organization, f"m{number}", ["gpt-5.5"], by=owner.user)
            model_rules.block(owner.organization, [models.pop()], by=owner.user)

    api_tokens.issue(owner, name="own", by=owner.user, now=utc_now())
    more(2)
    few = asked()
    more(6)
    assert asked() == few
    assert few <= 25
