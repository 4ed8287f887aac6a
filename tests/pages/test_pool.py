"""The pool's page: who sees it, what it says of each account, what it says when Redis is away, how many queries it takes."""

import re
import time
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from accounts.models import Member
from config import redis as weir_redis
from config.clock import utc_now
from routing import accounts, live, pools
from routing.models import Pool, PoolAccount
from tests import factories
from tests.pages import made

pytestmark = pytest.mark.django_db


class World:
    """An organization with a pool: two sign-ins and a key; their live fields are set as the request path would."""

    def __init__(self) -> None:
        self.organization = factories.organization(timezone="Europe/Berlin")
        self.owner = factories.member(self.organization, role="owner")
        self.lead = factories.member(self.organization, role="lead")
        self.pool = pools.default(self.organization)

    def sign_in(self, label: str, **fields: Any) -> PoolAccount:
        return PoolAccount.objects.create(
            **{
                "pool": self.pool,
                "kind": "chatgpt",
                "label": label,
                "identity": factories.unique("identity"),
                "email": f"{factories.unique('person')}@pool.example",
                "plan_type": "plus",
                "access_token": "sealed-access",
                "refresh_token": "sealed-refresh",
                **fields,
            }
        )

    def key(self, label: str, **fields: Any) -> PoolAccount:
        row, _ = factories.key_account(self.organization, label=label)
        PoolAccount.objects.filter(pk=row.pk).update(**fields)
        return row

    def live(self, account: PoolAccount, **fields: str) -> None:
        """Fields of the live hash: c, x, w, …"""
        client = weir_redis.sync_client()
        for name, value in fields.items():
            client.hset(live.pool_live_key(self.pool.pk, self.organization.pk), f"{account.pk}:{name}", value)

    def windows(self, account: PoolAccount, *, short: float | None = None, week: float | None = None, **resets: timedelta) -> None:
        """Percents used, and when each is reset (`short_in`, `week_in`)."""
        parts = []
        now = utc_now()
        for minutes, used, ahead in (
            (300, short, resets.get("short_in", timedelta(hours=2))),
            (10_080, week, resets.get("week_in", timedelta(days=2, hours=4))),
        ):
            if used is not None:
                parts.append(f"{minutes}={used:g}:{int((now + ahead).timestamp())}:{int(now.timestamp() * 1000)}:0:0:0")
        self.live(account, w=";".join(parts))

    def runs(self, account: PoolAccount, count: int, *, lapsed: int = 0) -> None:
        """Slots that are taken, and some whose lease has ended."""
        key = f"routing:{live.pool_tag(self.pool.pk, self.organization.pk)}:p{self.pool.pk}:slots:{account.pk}"
        now = time.time() * 1000
        slots = {f"req_{number}": now + 60_000 for number in range(count)}
        slots |= {f"old_{number}": now - 1000 for number in range(lapsed)}
        weir_redis.sync_client().zadd(key, slots)


@pytest.fixture
def world() -> World:
    return World()


def get(member: Member, query: str = "") -> str:
    answered = made.signed_in(member).get(made.path(member, f"pool{query}"))
    assert answered.status_code == 200
    return answered.content.decode()


def text(page: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())


def row(page: str, account: PoolAccount) -> str:
    [found] = re.findall(rf'<tr data-account="{account.uuid}">.*?</tr>', page, re.S)
    return text(found)


def answer(page: str) -> str:
    [found] = re.findall(r'<p class="answer" id="answer"[^>]*>(.*?)</p>', page, re.S)
    return " ".join(re.sub(r"<[^>]+>", "", found).split())


class TestWho:
    @pytest.mark.parametrize(
        ("role", "team", "status"),
        [("owner", False, 200), ("lead", False, 200), ("lead", True, 403), ("developer", False, 403), ("finance", False, 403)],
    )
    def test_leads_of_the_whole_organization_and_owners_see_it(self, world: World, role: str, team: bool, status: int) -> None:
        """The pool is the organization's: design section 1 gives it to organization-wide leads, not to a team's."""
        member = factories.member(world.organization, role=role, team=factories.team(world.organization) if team else None)
        client = made.signed_in(member)
        answered = client.get(made.path(member, "pool"))
        assert answered.status_code == status
        page = client.get(made.path(member, "key")) if role != "finance" else client.get(made.path(member, "overview"))
        assert (f'href="{made.path(member, "pool")}"' in page.content.decode()) is (status == 200)

    def test_who_is_not_signed_in_is_asked_to(self, world: World) -> None:
        answered = Client().get(f"/o/{world.organization.slug}/pool")
        assert answered.status_code == 302
        assert answered["location"].startswith("/accounts/login/")

    def test_a_foreign_or_missing_pool_is_not_found(self, world: World) -> None:
        foreign = World()
        for uuid in (foreign.pool.uuid, "00000000-0000-4000-8000-000000000000", "x"):
            assert made.signed_in(world.owner).get(made.path(world.owner, f"pool?pool={uuid}")).status_code == 404


class TestStates:
    def test_each_state_has_its_word_and_why(self, world: World) -> None:
        now = utc_now()
        serving = world.sign_in("Serving one")
        world.windows(serving, short=52, week=38)
        draining = world.sign_in("Draining one")
        world.windows(draining, short=10, week=99)
        used_up = world.sign_in("Used up")
        world.windows(used_up, short=100, week=20, short_in=timedelta(minutes=50, seconds=30))
        cooling = world.sign_in("Failing one")
        world.live(cooling, c=str(int((now + timedelta(minutes=3, seconds=5)).timestamp() * 1000)))
        floored = world.sign_in("Floored", floor_percent=20)
        world.windows(floored, short=85, week=10)
        paused = world.sign_in("Paused one", status="paused")
        sick = world.sign_in("Sick one")
        accounts.need_sign_in(sick.pk, "refresh_token_invalidated")
        standby = world.key("Standby one")
        page = get(world.lead)
        assert row(page, serving).startswith("Serving one ChatGPT plus")
        assert " Serving 48 % left resets in " in row(page, serving)
        assert " Draining too little room for a new turn; running ones finish 90 % left" in row(page, draining)
        assert " Cooling down used up, back in 50 min " in row(page, used_up)
        assert " Cooling down its upstream failed, back in 3 min " in row(page, cooling)
        assert " Cooling down at the 20 % its person keeps, back in " in row(page, floored)
        assert " Paused " in row(page, paused)
        assert " Needs sign-in refresh token invalidated " in row(page, sick)
        assert " Standby used when no lower tier has room no window no window 10 0 0" in row(page, standby)
        assert "8 accounts · 3 carry traffic · 0 requests running" in text(page)

    def test_the_only_account_that_speaks_messages_stands_in_for_nobody(self, world: World) -> None:
        world.windows(world.sign_in("Plus"), short=10, week=10)
        claude = world.key("Claude", kind="anthropic", priority=10)
        second = world.key("Second Claude", kind="anthropic", priority=11)
        page = get(world.lead)
        assert row(page, claude).endswith(" Serving no window no window 10 0 0")
        assert " Standby used when no lower tier has room no window no window 11 0 0" in row(page, second)

    def test_windows_are_meters_with_countdown_moment_and_floor(self, world: World) -> None:
        account = world.sign_in("Ada", floor_percent=20)
        world.windows(account, short=52.0, week=75.5, short_in=timedelta(hours=1, minutes=52, seconds=30))
        page = get(world.lead)
        assert 'rect class="left" width="48.0%"' in page
        assert 'rect class="left" width="24.5%"' in page
        assert '<line class="floor" x1="20%" x2="20%"' in page
        said = row(page, account)
        assert "48 % left resets in 1 h 52 min · " in said
        # Rounded down: never flattering.
        assert "24 % left resets in 2 d 3 h · " in said or "24 % left resets in 2 d 4 h · " in said

    def test_the_levels_of_a_meter(self, world: World) -> None:
        low, out = world.sign_in("Low"), world.sign_in("Out")
        world.windows(low, short=10, week=80)
        world.windows(out, short=10, week=95)
        page = get(world.lead)
        assert page.count('<div class="window low">') == 1
        assert page.count('<div class="window out">') == 1

    def test_other_lengths_are_named_and_what_was_reset_is_not_told_as_fresh(self, world: World) -> None:
        monthly, over = world.sign_in("Monthly", plan_type="free"), world.sign_in("Over")
        now = utc_now()
        ms = int(now.timestamp() * 1000)
        world.live(monthly, w=f"43200=30:{int((now + timedelta(days=9)).timestamp())}:{ms}:0:0:0")
        world.windows(over, week=90, week_in=-timedelta(minutes=5))
        page = get(world.lead)
        assert "70 % left of 30d" in row(page, monthly)
        assert "was reset, not reported since" in row(page, over)
        assert "not reported yet" in row(page, over)

    def test_running_requests_of_the_cap_and_what_was_carried(self, world: World) -> None:
        account = world.sign_in("Ada", concurrency_cap=4)
        world.runs(account, 3, lapsed=2)
        key = factories.api_key(factories.member(world.organization))
        made.used(key.row, 1_234_500_000, account_id=account.pk, at=utc_now())
        made.used(key.row, 99_000_000, account_id=None)
        page = get(world.lead)
        assert row(page, account).endswith("0 3 of 4 1,235")
        assert text(page).count("3 requests running") == 1
        assert re.search(r"All accounts.* 3 1,235", text(page))

    def test_a_failing_poll_and_another_plan_are_told(self, world: World) -> None:
        account = world.sign_in("Ada", poll_outcome="unanswered: ReadTimeout", reported_plan="pro")
        assert "last poll: unanswered: ReadTimeout" in row(get(world.lead), account)
        opened = text(get(world.lead, f"?open={account.uuid}"))
        assert "its upstream says pro" in opened

    def test_those_taken_out_stand_at_the_foot(self, world: World) -> None:
        world.sign_in("Ada")
        world.sign_in("Gone one", status="withdrawn")
        page = get(world.lead)
        assert "Taken out: Gone one." in text(page)
        assert "1 account · 1 carries traffic" in text(page)

    def test_no_secret_is_on_the_page(self, world: World) -> None:
        account = world.sign_in("Ada", withdrawal_digest="d" * 64)
        page = get(world.owner, f"?open={account.uuid}")
        assert "sealed-" not in page
        assert "d" * 64 not in page


class TestSentence:
    def used_for(self, world: World, account: PoolAccount, credits_a_day: int, days: int = 8) -> None:
        key = factories.api_key(factories.member(world.organization))
        for back in range(days):
            made.used(key.row, credits_a_day * made.CREDIT, account_id=account.pk, at=utc_now() - timedelta(days=back, minutes=2))

    def test_an_empty_pool(self, world: World) -> None:
        page = get(world.lead)
        assert answer(page) == "No account yet: every request is refused until one joins."
        assert "The pool is empty" in page

    def test_a_shared_pool_carries_for_who_has_none(self, world: World) -> None:
        shared = Pool.objects.create(organization=None, name=factories.unique("Shared"), plans=["plus"])
        other = world.sign_in("The operator's")
        PoolAccount.objects.filter(pk=other.pk).update(pool=shared)
        page = get(world.lead)
        assert f"No account of your own: requests go through the operator’s shared pool {shared.name}." in answer(page)
        assert "The operator&#x27;s" not in page

    def test_too_early_to_tell(self, world: World) -> None:
        account = world.sign_in("Ada")
        world.windows(account, short=0, week=38)
        self.used_for(world, account, 10, days=3)
        said = answer(get(world.lead))
        assert said == "62 % left; too early to tell how long that lasts: there are under five days of use. No account is sick."

    def test_it_lasts(self, world: World) -> None:
        account = world.sign_in("Ada")
        world.windows(account, short=0, week=38)
        self.used_for(world, account, 10)
        said = answer(get(world.lead))
        assert said.startswith("62 % left, and at the rate of the last 7 days the pool lasts to its next reset, Ada in 2 d ")
        assert said.endswith("and through the next 7 days. No account is sick.")

    def test_it_runs_out_before_its_reset(self, world: World) -> None:
        account = world.sign_in("Ada")
        world.windows(account, short=0, week=90)
        self.used_for(world, account, 500)
        said = answer(get(world.lead))
        assert said.startswith("10 % left, and at the rate of the last 7 days the pool runs out around ")
        assert ", before Ada resets (" in said

    def test_who_is_sick_is_named_with_the_next_step(self, world: World) -> None:
        account = world.sign_in("Dario's Plus")
        accounts.need_sign_in(account.pk, "refresh_token_invalidated")
        page = get(world.lead)
        assert answer(page) == "No account carries traffic now. Dario&#x27;s Plus needs sign-in."
        assert "Dario&#x27;s Plus needs sign-in. Refresh token invalidated, " in text(page)
        assert f'href="{made.path(world.lead, "pool")}?add=browser">Sign in again</a>' in page

    def test_only_keys_run_out_of_nothing(self, world: World) -> None:
        world.key("Key")
        assert answer(get(world.lead)).startswith("Nothing here runs out: the accounts have reported no weekly window.")


class TestResets:
    def test_who_comes_back_when_and_with_how_much(self, world: World) -> None:
        first, second, late = world.sign_in("First"), world.sign_in("Second"), world.sign_in("Late")
        world.windows(first, short=0, week=50, week_in=timedelta(hours=20))
        world.windows(second, short=0, week=20, week_in=timedelta(days=3))
        world.windows(late, short=0, week=20, week_in=timedelta(days=8))
        page = get(world.lead)
        [drawing] = re.findall(r'<svg class="timeline".*?</svg>', page, re.S)
        assert re.findall(r'class="name"[^>]*>([^<]+)<', drawing) == ["First · 50 % left", "Second · 80 % left"]
        assert re.findall(r">\+([\d,.]+)<", drawing) == ["750", "300"]
        assert "The next 24 hours bring 750 credits, the next 7 days 1,050." in text(page)
        assert "style=" not in page

    def test_nothing_known(self, world: World) -> None:
        world.key("Key")
        assert "No reset is known" in get(world.lead)


class TestStrategy:
    def test_each_strategy_stands_with_a_sentence_and_the_one_in_use_is_marked(self, world: World) -> None:
        world.sign_in("Ada")
        page = get(world.lead)
        chosen = re.findall(r'<input type="radio" name="strategy" id="st-(\w+)" value="\w+"( checked)?>', page)
        assert [name for name, _ in chosen] == list(Pool.Strategy.values)
        assert [name for name, checked in chosen if checked] == ["pace"]
        assert page.count("in use</span>") == 1
        for label, value in (("Safety", "4"), ("Loyalty", "0.75")):
            assert re.search(
                rf'{label}</label><input id="strategy-\w+" name="\w+" type="text" autocomplete="off" value="{value}"', page
            )

    def test_several_pools_are_chosen_from(self, world: World) -> None:
        other = Pool.objects.create(organization=world.organization, name="Nightly", strategy="fill_first")
        world.sign_in("Ada")
        page = get(world.lead, f"?pool={other.uuid}")
        assert "Ada" not in text(page)
        assert re.search(r'id="st-fill_first" value="fill_first" checked', page)
        assert f'?pool={world.pool.uuid}">Main</a>' in page


class TestExplanation:
    def test_where_a_request_would_go_and_why_not_elsewhere(self, world: World) -> None:
        ada, bob, cleo = world.sign_in("Ada"), world.sign_in("Bob"), world.sign_in("Cleo")
        world.windows(ada, short=0, week=10)
        world.windows(bob, short=100, week=10, short_in=timedelta(hours=1, minutes=30))
        PoolAccount.objects.filter(pk=cleo.pk).update(models_served=["gpt-other"])
        page = get(world.lead, "?model=gpt-5.5")
        assert "Ada carries a new turn, taken to cost 12 credits." in text(page)
        said = text(page[page.index('id="explain"') :])
        assert re.search(r"Ada fits: room for the whole turn 1 [\d.,]+ 225 0 100 % 90 %", said)
        assert re.search(r"Bob exhausted until \d\d:\d\d|Bob exhausted until \w{3} \d\d:\d\d", said)
        assert "Cleo does not serve this model" in said

    def test_nobody(self, world: World) -> None:
        ada = world.sign_in("Ada")
        PoolAccount.objects.filter(pk=ada.pk).update(models_served=["gpt-other"])
        assert "Nobody: No account of the pool serves this model." in text(get(world.lead, "?model=gpt-5.5"))

    def test_a_model_must_be_named(self, world: World) -> None:
        world.sign_in("Ada")
        assert "This field is required." in get(world.lead, "?model=")


class TestAway:
    def test_without_redis_the_page_says_so_and_shows_what_is_stored(
        self, world: World, monkeypatch: pytest.MonkeyPatch, settings: Any
    ) -> None:
        account = world.sign_in("Ada")
        key = factories.api_key(factories.member(world.organization))
        made.used(key.row, 5_000_000, account_id=account.pk, at=utc_now())
        sick = world.sign_in("Sick one", status="needs_sign_in")
        settings.REDIS_URL = "redis://127.0.0.1:9/0"
        weir_redis.sync_client.cache_clear()
        try:
            page = get(world.lead, "?model=gpt-5.5")
        finally:
            weir_redis.sync_client.cache_clear()
        assert answer(page).startswith("What is left cannot be told now. The live state does not answer.")
        assert "Sick one needs sign-in." in answer(page)
        assert row(page, account).endswith("Serving unknown unknown 0 – 5.00")
        assert "Needs sign-in" in row(page, sick)
        assert "The live state does not answer, so nobody can say." in page


def test_it_is_live_and_a_row_that_somebody_works_on_is_marked(world: World) -> None:
    account = world.sign_in("Ada")
    page = get(world.lead)
    assert f'data-live="/ws/o/{world.lead.organization.slug}/live?page=pool"' in page
    for part in ("counts", "answer", "accounts", "resets"):
        assert f'id="{part}" data-part="pool config"' in page
    # live.js leaves a part alone that has an open form in it.
    assert "data-open>" not in page
    assert "data-open>" in get(world.lead, f"?open={account.uuid}")


class TestCost:
    def test_queries_and_round_trips_do_not_grow_with_the_accounts(self, world: World) -> None:
        def cost() -> tuple[int, int]:
            client = made.signed_in(world.lead)
            client.get(made.path(world.lead, "pool"))
            before = weir_redis.sync_client().info("stats")["total_reads_processed"]
            with CaptureQueriesContext(connection) as queries:
                assert client.get(made.path(world.lead, "pool")).status_code == 200
            return len(queries), weir_redis.sync_client().info("stats")["total_reads_processed"] - before

        world.windows(world.sign_in("Ada"), short=0, week=10)
        few = cost()
        for number in range(30):
            world.windows(world.sign_in(f"Account {number}"), short=number, week=number)
        many = cost()
        assert many[0] == few[0] <= 16
        # One for the pool, one for the question about it.
        assert many[1] <= 3


def test_times_are_in_the_organizations_zone(world: World) -> None:
    account = world.sign_in("Ada")
    resets = utc_now() + timedelta(days=2)
    world.live(account, w=f"10080=10:{int(resets.timestamp())}:{int(time.time() * 1000)}:0:0:0")
    page = get(world.lead)
    stamp = datetime.fromtimestamp(int(resets.timestamp()), UTC).isoformat()
    shown = re.findall(rf'<time datetime="{re.escape(stamp)}">([^<]+)</time>', page)
    assert "Times in Europe/Berlin" in page
    assert shown
    assert {moment[-5:] for moment in shown} == {f"{resets.astimezone(ZoneInfo('Europe/Berlin')):%H:%M}"}


def test_another_pool_is_made_and_a_name_twice_is_the_one_that_is_there(world: World) -> None:
    client = made.signed_in(world.lead)
    for _ in range(2):
        answered = client.post(made.path(world.lead, "pool/new"), {"name": " Night shift "})
        [pool] = Pool.objects.filter(organization=world.lead.organization, name="Night shift")
        assert answered["Location"] == f"{made.path(world.lead, 'pool')}?pool={pool.uuid}"
    page = client.get(answered["Location"]).content.decode()
    assert "There is a pool Night shift already." in page
    refused = client.post(made.path(world.lead, "pool/new"), {"name": "a\u202eb"})
    assert (refused.status_code, "1 to 80 printable characters" in refused.content.decode()) == (400, True)
    developer = factories.member(world.lead.organization)
    assert made.signed_in(developer).post(made.path(developer, "pool/new"), {"name": "x"}).status_code == 403
