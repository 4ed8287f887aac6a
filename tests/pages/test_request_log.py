"""The request log: who sees which rows, and what an opened one says."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from accounts.models import Member
from config.clock import utc_now
from tests import factories
from tests.pages import made
from tests.pages.request_rows import CREDIT, SECRET_LABEL, World, ask, line, listed, page, rated, refused

pytestmark = pytest.mark.django_db


@pytest.fixture
def world() -> World:
    return World()


# --------------------------------------------------------------------------------------------------------------- reach


def test_owner_and_lead_of_the_whole_see_everybodys(world: World) -> None:
    for role in ("owner", "lead"):
        text = page(world.member(role))
        assert set(listed(text)) == world.names("tomasz", "anselm", "lena")
        assert SECRET_LABEL.replace("'", "&#x27;") in text
        assert "3 requests · 6.00 credits · 3 refused" in text


def test_a_lead_with_a_team_sees_that_team_only(world: World) -> None:
    """What somebody used before they came stays with the team of that time."""
    Member.objects.filter(pk=world.developers["anselm"].pk).update(team=world.quality)
    text = page(world.member("lead", world.quality))
    assert set(listed(text)) == world.names("tomasz")
    assert "1 request · 1.00 credits · 1 refused" in text


def test_a_developer_sees_their_own_rows_whatever_the_parameters_say(world: World) -> None:
    """J1: the scope is the session's, not the client's."""
    lena, other = world.developers["lena"], world.developers["tomasz"]
    assert set(listed(page(lena))) == world.names("lena")
    for query in (
        f"?range=7d&member={other.uuid}",
        f"?team={world.quality.uuid}",
        f"?account={world.account.uuid}",
        f"?key={world.keys['tomasz'].uuid}",
    ):
        answered = ask(lena, query)
        assert answered.status_code == 400
        assert set(listed(answered.content.decode())) <= world.names("lena")
    for query in ("?range=all", "?user=", "?member=", f"?before={world.rows['tomasz'].request_id}", "?status=ok&model="):
        assert set(listed(page(lena, query))) <= world.names("lena")


def test_finance_sees_no_single_request(world: World) -> None:
    finance = world.member("finance")
    assert ask(finance).status_code == 403
    assert ask(finance, f"/{world.rows['lena'].request_id}").status_code == 403
    assert made.path(finance, "requests") not in made.signed_in(finance).get(made.path(finance, "usage")).content.decode()


def test_one_request_is_403_for_who_may_not_and_404_where_there_is_none(world: World) -> None:
    foreign = World()
    lead = world.member("lead", world.quality)
    for name in world.names("anselm"):
        assert ask(lead, f"/{name}").status_code == 403
        assert ask(world.developers["tomasz"], f"/{name}").status_code == 403
        assert ask(world.developers["anselm"], f"/{name}").status_code == 200
        assert ask(world.member("owner"), f"/{name}").status_code == 200
    missing = ask(lead, "/req_01AAAAAAAAAAAAAAAAAAAAAAAA")
    for name in foreign.names("anselm"):
        assert (ask(lead, f"/{name}").status_code, ask(lead, f"/{name}").content) == (404, missing.content)
        assert listed(page(world.member("owner"), f"?range=all&before={name}")) == listed(page(world.member("owner"), "?range=all"))
    for name in ("%00", "0" * 36, "x" * 3000, "req_", "00000000-0000-4000-8000-000000000000"):
        assert ask(lead, f"/{name}").status_code == 404


def test_no_upstream_account_is_told_to_who_has_no_pool(world: World) -> None:
    """J3: neither name nor id, neither score nor headroom nor how many there are, in list, page and row."""
    marks = [SECRET_LABEL.replace("'", "&#x27;"), SECRET_LABEL, str(world.account.uuid), "0.4137", "240,174", "in the running"]
    for reader in (world.developers["tomasz"], world.member("lead", world.quality)):
        name = world.rows["tomasz"].request_id
        for query, headers in (
            ("?range=7d", {}),
            (f"/{name}", {}),
            (f"/{name}", {"HX-Request": "true", "HX-Target": f"row-{name}"}),
        ):
            answered = ask(reader, query, headers=headers)
            assert answered.status_code == 200
            text = answered.content.decode()
            assert [mark for mark in marks if mark in text] == [], query
            assert query.startswith("?") or "Went to <strong>an account of the pool</strong>." in text
    owner = page(world.member("owner"), f"/{world.rows['tomasz'].request_id}")
    assert all(mark in owner for mark in ("0.4137", "240,174", SECRET_LABEL.replace("'", "&#x27;")))


def test_a_shared_pools_account_has_no_label(world: World) -> None:
    made.used(world.keys["lena"], CREDIT, account_id=2**40, at=utc_now())
    text = page(world.member("owner"))
    assert text.count('hide-phone">–</td>') >= 1


# -------------------------------------------------------------------------------------------------------------- opened


def test_an_opened_row_tells_way_price_and_times(world: World) -> None:
    first, second = world.account.pk, factories.openai_account(world.organization, label="Halden Pro")[0].pk
    row = made.used(
        world.keys["lena"],
        6_324_380,
        model="gpt-6.1-sol",
        account_id=second,
        held=9_100_000,
        latency_ms=18_400,
        first_token_ms=1_300,
        tier_billed="standard",
        lines=[line(second, 6_324_380)],
        trace=[
            {
                "account_id": first, "reason": "sticky", "candidates": 1, "status": 429, "failure": "usage_limit",
                "asked": "gpt-6-astra",
            },
            {
                "account_id": second, "reason": "pace", "candidates": 3, "turn": 3.2, "status": 200,
                "best": [[second, 0.8123, 240.5], [first, None, None]],
            },
        ],
    )  # fmt: skip
    text = re.sub(r"<[^>]+>", "", page(world.member("owner"), f"/{row.request_id}"))
    for said in (
        "6.324380 credits for gpt-6.1-sol by",
        "OK after 18.4 s, the first token after 1.3 s.",
        "0 msAdmitted. 9.100000 credits held.",
        "gpt-6-astra was asked for. A rule of the organization lets gpt-6.1-sol serve in its place.",
        "try 1Went to Mira&#x27;s secret Plus. The session’s own account, with enough left. Answered 429: its usage limit was "
        "reached. Nothing had reached the client yet.",
        "try 2Moved to Halden Pro. Chosen by pace, of 3 in the running.",
        "1.3 sFirst token.",
        "18.4 sCompleted. 6.324380 charged, 2.775620 given back.",
        "Candidates of try 2: 3 in the running, for a turn of about 3.20 credits",
        "Halden Pro taken0.8123241",
        "Mira&#x27;s secret Plus–no bound",
        "Input, new61,204503.060200",
        "Input, cached412,6722.51.031680",
        "Output8,9302502.232500",
        "Charged, from plan quota6.324380",
        "(61,204 × 50 + 412,672 × 2.5 + 8,930 × 250) ÷ 1,000,000 = 6.324380",
        f"Rate card {rated().card.name}: gpt-6.1-sol from ",
        "standard tier · 1,204 of the output tokens were reasoning",
        "gpt-6.1-sol asked, gpt-6.1-sol served",
        "none asked, standard billed",
    ):
        assert said in text, said


def test_flags_and_funds_are_told_in_words(world: World) -> None:
    row = made.used(
        world.keys["lena"],
        9 * CREDIT,
        from_quota=5 * CREDIT,
        from_purchased=2 * CREDIT,
        from_overage=CREDIT,
        overdraft=CREDIT,
        is_estimated=True,
        is_implausible=True,
        is_clamped=True,
        status="client_closed",
        held=CREDIT,
        lines=[line(world.account.pk, 9 * CREDIT)],
    )
    text = page(world.member("owner"), f"/{row.request_id}")
    plain = re.sub(r"<[^>]+>", "", text)
    for said in (
        "From plan quota5.000000", "From purchased credits2.000000", "From overage, on the invoice1.000000",
        "From overdraft1.000000", "Charged9.000000", "The client left. 9.000000 charged, 8.000000 more than was held.",
        "Estimated. ", "Implausible. ", "Clamped. ", "Overdraft. ", "The upstream’s counts cannot be, so what was held is charged.",
    ):  # fmt: skip
        assert said in plain, said
    shown = page(world.member("owner")).split(f'id="row-{row.request_id}"')[1].split("</tbody>")[0]
    assert re.findall(r'<span class="muted small" title="[^"]+">(\w+)</span>', shown) == [
        "estimated", "implausible", "clamped", "overdraft",
    ]  # fmt: skip


def test_an_amended_orphan_is_one_row_with_its_parts(world: World) -> None:
    key, at = world.keys["lena"], utc_now() - timedelta(minutes=3)
    orphan = made.used(key, 2 * CREDIT, at=at, status="orphaned", is_estimated=True, input_tokens=10, output_tokens=0)
    made.used(
        key, -500_000, at=at, request_id=orphan.request_id, part=1, input_tokens=61194, output_tokens=8930,
        cached_input_tokens=409272, counted_requests=0, lines=[line(world.account.pk, 1_500_000)],
        trace=[{"account_id": world.account.pk, "reason": "turn", "candidates": 1, "status": 200}], latency_ms=4000,
    )  # fmt: skip
    owner = world.member("owner")
    assert listed(page(owner)).count(orphan.request_id) == 1
    shown = page(owner).split(f'id="row-{orphan.request_id}"')[1].split("</tbody>")[0]
    plain = re.sub(r"<[^>]+>", "|", shown)
    assert "1.50" in plain
    assert "Orphaned" in plain
    assert "amended" in plain
    assert all(f"|{tokens}|" in plain for tokens in ("61,204", "412,672", "8,930"))
    opened = re.sub(r"<[^>]+>", "", page(owner, f"/{orphan.request_id}"))
    for said in (
        "Booked as orphaned at what was seen by then: 2.000000. Its real end came later, 0.500000 less.",
        "The turn that runs goes on here.", "4.0 sCompleted. 1.500000 charged", "−0.500000", "Together1.500000",
    ):  # fmt: skip
        assert said in opened, said


def test_what_cost_nothing_says_why(world: World) -> None:
    failed = made.used(
        world.keys["lena"], 0, status="failed", model_served="", lines=[], first_token_ms=None,
        trace=[{"account_id": world.account.pk, "reason": "owner", "candidates": 1, "failure": "connect_failed"}],
    )  # fmt: skip
    text = re.sub(r"<[^>]+>", "", page(world.developers["lena"], f"/{failed.request_id}"))
    assert "It holds what the request continues. No connection came about." in text
    assert "Nothing of it ran at an upstream, so it cost nothing." in text
    assert "Charged0.000000" in text


def test_an_opened_refusal_has_its_reason(world: World) -> None:
    row = refused(world.keys["tomasz"], metric="requests_per_minute", window="", limit=60, used=60, need=1, count=12)
    text = page(world.member("owner"))
    assert "Refused: daily limit" in text
    assert "Refused: 60 / min" in text
    assert "12 times" in text
    own = page(world.developers["tomasz"], f"/{row.uuid}")
    assert "Your limit of requests per minute was reached" in own
    assert "It cost nothing." in own


def test_a_row_is_opened_in_place_and_closed_again(world: World) -> None:
    name = world.rows["lena"].request_id
    headers = {"HX-Request": "true", "HX-Target": f"row-{name}"}
    opened = ask(world.member("owner"), f"/{name}", headers=headers).content.decode()
    assert opened.startswith(f'<tbody id="row-{name}"')
    assert 'aria-expanded="true"' in opened
    assert "?closed=1" in opened
    assert "Routing" in opened
    closed = ask(world.member("owner"), f"/{name}?closed=1", headers=headers).content.decode()
    assert 'aria-expanded="false"' in closed
    assert "Routing" not in closed
    assert "Routing" in page(world.member("owner"), f"/{name}?closed=1")


def test_times_are_the_organizations(world: World) -> None:
    at = datetime(2026, 1, 5, 23, 30, 12, tzinfo=UTC)
    row = made.used(world.keys["lena"], CREDIT, at=at)
    text = page(world.member("owner"), f"/{row.request_id}")
    assert "Tue 6 Jan, 00:30:12" in re.sub(r"<[^>]+>", "", text).replace(", 2026", "").replace(" 2026", "")
    assert 'datetime="2026-01-05T23:30:12+00:00"' in text


def test_nothing_inline_and_every_control_has_a_label(world: World) -> None:
    text = page(world.member("owner")) + page(world.member("owner"), f"/{world.rows['lena'].request_id}")
    assert " style=" not in text
    assert not re.search(r"<script(?![^>]*src=)", text)
    assert not re.search(r"\son\w+=", text)
    controls = set(re.findall(r'<(?:select|input) id="([^"]+)"', text))
    assert controls <= set(re.findall(r'<label for="([^"]+)"', text))
