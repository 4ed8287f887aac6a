"""The files: their columns, what stands in them for whom, one sum, one cut, constant memory."""

import csv
import io
import re
import threading
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from accounts.models import ApiKey, Member, Organization, Team
from billing import credits, csvfile, exports, labels, usage, usage_report
from billing.errors import GroupingForbidden, GroupingUnknown, RangeInvalid
from billing.labels import Sight
from billing.models import UsageRecord
from billing.usage_report import Range
from config.clock import utc_now
from tests import factories
from tests.billing.usage_events import event_for, line

pytestmark = pytest.mark.django_db

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "exports.md"
BERLIN = ZoneInfo("Europe/Berlin")
NOON = datetime(2026, 11, 25, 12, tzinfo=UTC)
MONTH = usage_report.of_days(date(2026, 11, 1), date(2026, 11, 30), BERLIN)
CREDIT = 1_000_000
FORMULA = '=HYPERLINK("http://x","y")'


class World:
    """A team with a developer and a key, an account of the organization's own."""

    def __init__(self, *, key_name: str = "laptop", team: str = "Core") -> None:
        self.organization = factories.organization(timezone="Europe/Berlin")
        self.team = factories.team(self.organization, team)
        self.member = factories.member(self.organization, team=self.team)
        self.key = factories.api_key(self.member, name=key_name).row
        self.account, _ = factories.openai_account(self.organization, label="Main key")

    def event(self, **fields: Any) -> Any:
        amount = fields.pop("credits", CREDIT)
        model = fields.pop("model", "gpt-5.4")
        priced = (
            line(
                model, account_id=self.account.pk, input=10, cached_input=20, cache_write=3, output=5, reasoning=2, credits=amount
            ),
        )
        given = {
            "admitted_at": NOON,
            "credits": amount,
            "team_id": self.team.pk,
            "account_id": self.account.pk,
            "lines": priced,
            "model_asked": model,
        }
        return event_for(self.key, **{**given, **fields})

    def record(self, *events: Any) -> None:
        usage.record(self.organization.pk, events)

    def sight(self, role: str = "owner", team: Team | None = None) -> Sight:
        return labels.sight(factories.member(self.organization, role=role, team=team))


@pytest.fixture
def world() -> World:
    return World()


def written(file: exports.File) -> str:
    return b"".join(exports.pieces(file)).decode()


def read(content: str) -> list[dict[str, str]]:
    """The records by column, all of them."""
    return list(csv.DictReader(io.StringIO(content, newline=""), strict=True))


def rows_of(sight: Sight, chosen: Range = MONTH, **options: Any) -> list[dict[str, str]]:
    return read(written(exports.RowsFile(sight, chosen, **options)))


def totals_of(sight: Sight, by: str, chosen: Range = MONTH) -> list[dict[str, str]]:
    return read(written(exports.TotalsFile(sight, by, chosen, now=NOON + timedelta(days=30))))


def documented(heading: str) -> tuple[str, ...]:
    section = DOCUMENT.read_text().split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return tuple(re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE))


def test_the_columns_are_those_of_the_document_in_their_order(world: World) -> None:
    """I6: input, cached, cache write, output, reasoning, credits, rate version, tier and status are among them."""
    assert documented("Every request") == exports.ROW_COLUMNS
    assert tuple(next(csv.reader(io.StringIO(written(exports.RowsFile(world.sight(), MONTH)))))) == exports.ROW_COLUMNS
    needed = {"input_tokens", "cached_input_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens", "credits"}
    assert needed | {"rate_version", "tier_asked", "tier_billed", "status", "estimated", "implausible"} <= set(exports.ROW_COLUMNS)


@pytest.mark.parametrize("by", usage_report.GROUPINGS)
def test_the_columns_of_sums_are_those_of_the_document(world: World, by: str) -> None:
    """I6, I5: the same amounts in every grouping, whatever it is by."""
    found = tuple(next(csv.reader(io.StringIO(written(exports.TotalsFile(world.sight(), by, MONTH, now=NOON))))))
    assert found == exports.total_columns(by)
    assert documented(f"Sums by {by}") == usage_report.COLUMNS[by]
    assert found[:2] + found[2 + len(usage_report.COLUMNS[by]) :] == documented("Sums")


def test_a_request_stands_in_full(world: World) -> None:
    """D1, I6: times in the organization's zone with their offset, public ids only, credits as decimal text."""
    event = world.event(
        credits=300_000,
        funds=(100_000, 50_000, 0, 150_000),
        tier_asked="priority",
        tier_billed="default",
        model_served="gpt-5.4-2026-01-01",
        rate_id=77,
        is_estimated=True,
        latency_ms=1200,
        first_token_ms=340,
    )
    world.record(event)
    row, total = rows_of(world.sight())
    assert world.member.user is not None
    assert row == {
        "record": "usage", "rows": "1", "admitted_at": "2026-11-25T13:00:00+01:00", "admitted_at_utc": "2026-11-25T12:00:00+00:00",
        "request_id": event.request_id, "part": "0", "team": "Core", "team_id": str(world.team.uuid), "member": str(world.member),
        "member_email": world.member.user.email, "member_id": str(world.member.uuid), "key_name": "laptop",
        "key_public_id": world.key.public_id, "key_id": str(world.key.uuid), "account": "Main key",
        "account_id": str(world.account.uuid), "model_asked": "gpt-5.4", "model_served": "gpt-5.4-2026-01-01",
        "tier_asked": "priority", "tier_billed": "default", "input_tokens": "10", "cached_input_tokens": "20",
        "cache_write_tokens": "3", "output_tokens": "5", "reasoning_tokens": "2", "requests": "1", "credits": "0.3",
        "from_quota": "0.1", "from_purchased": "0.05", "from_overage": "0", "overdraft": "0.15", "priced_lines": "1",
        "rate_version": "77", "status": "ok", "estimated": "true", "implausible": "false", "latency_ms": "1200",
        "first_token_ms": "340",
    }  # fmt: skip
    assert (total["record"], total["rows"], total["credits"], total["requests"]) == ("total", "1", "0.3", "1")


def test_the_closing_line_counts_and_sums_and_cannot_be_taken_for_a_request(world: World) -> None:
    """D8: an amendment's negative difference is a number, and in the sum."""
    orphan = world.event(credits=2 * CREDIT, state="O", lines=())
    settled = world.event(credits=1_500_001, request_id=orphan.request_id)
    world.record(orphan, world.event(credits=1))
    world.record(settled)
    *rows, total = rows_of(world.sight())
    assert [(row["part"], row["credits"]) for row in rows if row["request_id"] == orphan.request_id] == [
        ("0", "2"),
        ("1", "-0.499999"),
    ]
    assert {row["record"] for row in rows} == {"usage"}
    filled = {name: value for name, value in total.items() if value}
    assert filled == {
        "record": "total", "rows": "3", "input_tokens": "20", "cached_input_tokens": "40", "cache_write_tokens": "6",
        "output_tokens": "10", "reasoning_tokens": "4", "requests": "2", "credits": "1.500002", "from_quota": "1.500002",
        "from_purchased": "0", "from_overage": "0", "overdraft": "0",
    }  # fmt: skip
    assert sum(credits.parse(row["credits"]) for row in rows) == credits.parse(total["credits"])


def test_no_use_is_a_file_with_a_closing_line(world: World) -> None:
    (total,) = rows_of(world.sight())
    assert (total["record"], total["rows"], total["credits"]) == ("total", "0", "0")
    assert [row["record"] for row in totals_of(world.sight(), "member")] == ["total"]


def test_every_grouping_and_the_requests_give_one_sum(world: World) -> None:
    """I3: models of 1, 2 and 3 credits are rows of 1, 2 and 3; every grouping sums to 6."""
    other = World.__new__(World)
    other.__dict__.update(world.__dict__)
    other.member = factories.member(world.organization)
    other.key = factories.api_key(other.member).row
    world.record(
        world.event(credits=CREDIT, model="m-1"),
        world.event(credits=2 * CREDIT, model="m-2", admitted_at=NOON - timedelta(days=3)),
        other.event(credits=3 * CREDIT, model="m-3", team_id=None, account_id=None),
    )
    sight = world.sight()
    *models, total = totals_of(sight, "model")
    assert [(row["model"], row["credits"]) for row in models] == [("m-3", "3"), ("m-2", "2"), ("m-1", "1")]
    for by in usage_report.GROUPINGS:
        *lines, total = totals_of(sight, by)
        assert (total["record"], total["credits"], total["requests"]) == ("total", "6", "3"), by
        assert sum(credits.parse(row["credits"]) for row in lines) == 6 * CREDIT, by
        assert int(total["rows"]) == len(lines)
    assert rows_of(sight)[-1]["credits"] == "6"


def test_every_day_that_has_begun_is_there(world: World) -> None:
    """I5: seven days with use on three are seven lines, the same in file and report; days to come are none."""
    for days in (0, 2, 5):
        world.record(world.event(admitted_at=NOON - timedelta(days=days)))
    week = usage_report.of_days(date(2026, 11, 19), date(2026, 11, 25), BERLIN)
    *lines, total = totals_of(world.sight(), "day", week)
    assert [(row["day"], row["credits"]) for row in lines] == [
        (f"2026-11-{day}", "1" if day in (20, 23, 25) else "0") for day in range(19, 26)
    ]
    assert (total["rows"], total["credits"]) == ("7", "3")
    report = usage_report.report(world.sight(), "day", MONTH, now=NOON)
    assert [one.names[0] for one in report.lines][-1] == "2026-11-25"


def test_a_day_is_the_organizations_day(world: World) -> None:
    """E16: 1 on the 23rd, 2 on the 24th; the file of the 24th says 2, in sums and in requests."""
    midnight = datetime(2026, 11, 24, tzinfo=BERLIN)
    world.record(
        world.event(credits=CREDIT, admitted_at=midnight - timedelta(seconds=1)),
        world.event(credits=2 * CREDIT, admitted_at=midnight),
        world.event(credits=4 * CREDIT, admitted_at=midnight + timedelta(days=1)),
    )
    chosen = usage_report.of_days(date(2026, 11, 24), date(2026, 11, 24), BERLIN)
    assert [(row["credits"]) for row in rows_of(world.sight(), chosen)] == ["2", "2"]
    assert [(row["credits"]) for row in totals_of(world.sight(), "day", chosen)] == ["2", "2"]


HOSTILE = [
    FORMULA, "+1", "-1", "@SUM(A1)", " =1+1", "＝1+1", "－1", "\t=1", "x;=1+1", 'x"\r\n=cmd|\' /C calc\'!A0', "a,b\n-2+3",
    "\u200b=1", "'=1", "Ольга 李 🦊", '"', "",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_what_clients_name_runs_nowhere(world: World, text: str) -> None:
    """I1: models and tiers come from clients; every text column is guarded, and reads back as what was sent."""
    world.record(world.event(model=text or "m", model_served=text, tier_asked=text[:20], tier_billed=text[:20]))
    *_, row, _ = rows_of(world.sight())
    kept = UsageRecord.objects.get(organization=world.organization)
    for name in ("model_asked", "model_served", "tier_asked", "tier_billed"):
        assert csvfile.unguarded(row[name]) == getattr(kept, name)
        assert not csvfile.is_formula(row[name]) or row[name].startswith("'")
    content = written(exports.RowsFile(world.sight(), MONTH)) + written(exports.TotalsFile(world.sight(), "model", MONTH, now=NOON))
    for separator in ",;\t":
        for cells in csv.reader(io.StringIO(content, newline=""), delimiter=separator):
            started = [cell for cell in cells if re.match(r"\s*[=+@＝＋－＠]|\s*-(?!0?[.\d]+$)", cell)]
            assert not started, (separator, started)


def test_names_of_people_teams_keys_and_accounts_are_guarded_too() -> None:
    """I1, I7: every name that somebody can choose."""
    world = World(key_name=FORMULA, team="=Core")
    Member.objects.filter(pk=world.member.pk).update(display_name="@Ольга 李 🦊")
    type(world.account).objects.filter(pk=world.account.pk).update(label="-Main")
    world.record(world.event())
    row, _ = rows_of(world.sight())
    assert (row["key_name"], row["team"], row["member"], row["account"]) == ("'" + FORMULA, "'=Core", "'@Ольга 李 🦊", "'-Main")
    named = {
        "key": ("key_name", FORMULA),
        "team": ("team", "=Core"),
        "member": ("member", "@Ольга 李 🦊"),
        "account": ("account", "-Main"),
    }
    for by, (column, name) in named.items():
        assert csvfile.unguarded(totals_of(world.sight(), by)[0][column]) == name
        assert totals_of(world.sight(), by)[0][column] == "'" + name


def test_a_byte_order_mark_tells_excel(world: World) -> None:
    """I7: on demand, once, in front; the text is the same."""
    Member.objects.filter(pk=world.member.pk).update(display_name="Ольга 李 🦊")
    world.record(world.event())
    sight = world.sight()
    for make in (
        lambda with_bom: exports.RowsFile(sight, MONTH, with_bom=with_bom),
        lambda with_bom: exports.TotalsFile(sight, "member", MONTH, now=NOON, with_bom=with_bom),
    ):
        plain, marked = (b"".join(exports.pieces(make(with_bom))) for with_bom in (False, True))
        assert marked == b"\xef\xbb\xbf" + plain
        assert read(plain.decode())[0]["member"] == "Ольга 李 🦊"


def test_lines_end_as_the_standard_says(world: World) -> None:
    world.record(world.event(model="a\nb"))
    content = written(exports.RowsFile(world.sight(), MONTH))
    assert content.endswith("\r\n")
    assert len(re.findall(r"(?<!\r)\n", content)) == content.count("a\nb")


# ---------------------------------------------------------------------------------------------------------- who sees what


def test_each_role_exports_what_it_sees(world: World) -> None:
    """J1, J3: no parameter widens it; accounts are named to who has the pool, by id to who has the money, to others not at all."""
    other = factories.member(world.organization, team=factories.team(world.organization))
    key = factories.api_key(other).row
    elsewhere = event_for(key, credits=5 * CREDIT, admitted_at=NOON, team_id=other.team_id, lines=())
    world.record(world.event(), elsewhere)
    everybody, own = {world.member, other}, {world.member}
    uuid, label = str(world.account.uuid), "Main key"
    seen = {
        "developer": (labels.sight(world.member), own, "", "", True),
        "team lead": (world.sight("lead", world.team), own, "", "", True),
        "lead": (world.sight("lead"), everybody, label, uuid, True),
        "finance": (world.sight("finance"), everybody, "", uuid, False),
        "owner": (world.sight("owner"), everybody, label, uuid, True),
        "key": (labels.own_sight(world.member), own, "", "", True),
    }
    for role, (sight, members, label, uuid, sees_ids) in seen.items():
        *rows, total = rows_of(sight)
        assert {row["member"] for row in rows} == {str(member) for member in members}, role
        assert total["credits"] == ("6" if len(members) == 2 else "1"), role
        row = next(row for row in rows if row["member"] == str(world.member))
        assert (row["account"], row["account_id"]) == (label, uuid), role
        assert row["key_public_id"] == (world.key.public_id if sees_ids else ""), role
        assert totals_of(sight, "member")[-1]["credits"] == total["credits"], role
        assert usage_report.groupings(sight) == usage_report.GROUPINGS[: 6 if uuid else 5], role


def test_accounts_are_summed_for_who_may_know_of_them_only(world: World) -> None:
    """J3: also where the grouping is asked for by name."""
    with pytest.raises(GroupingForbidden):
        usage_report.report(labels.sight(world.member), "account", MONTH, now=NOON)
    with pytest.raises(GroupingUnknown, match="day, team, member, key, model, account, not by 'weather'"):
        usage_report.report(world.sight(), "weather", MONTH, now=NOON)


def test_a_shared_account_has_no_label(world: World) -> None:
    type(world.account.pool).objects.filter(pk=world.account.pool_id).update(organization=None)
    world.record(world.event())
    row, _ = rows_of(world.sight())
    assert (row["account"], row["account_id"]) == ("", str(world.account.uuid))


def test_a_foreign_account_is_nothing(world: World) -> None:
    foreign, _ = factories.openai_account(factories.organization(), label="Theirs")
    world.record(world.event(account_id=foreign.pk))
    row, _ = rows_of(world.sight())
    assert (row["account"], row["account_id"]) == ("", "")


def test_nothing_of_another_organization_is_in_a_file(world: World) -> None:
    stranger = World()
    stranger.record(stranger.event(credits=7))
    world.record(world.event(credits=3))
    for by in usage_report.GROUPINGS:
        assert totals_of(world.sight(), by)[-1]["credits"] == "0.000003"
    assert [row["credits"] for row in rows_of(world.sight())] == ["0.000003", "0.000003"]


def test_what_was_used_in_another_team_stays_there(world: World) -> None:
    """A team's lead exports what was used in the team, also by who has left it, and nothing that a newcomer brought."""
    world.record(world.event(), world.event(team_id=None, credits=9))
    *rows, total = rows_of(world.sight("lead", world.team))
    assert ([row["credits"] for row in rows], total["credits"]) == (["1"], "1")


# -------------------------------------------------------------------------------------------------------------- the cut


def test_pages_meet_without_gap_or_overlap(world: World) -> None:
    """Many requests of one second, split over pages in the middle of it: each once, in one order."""
    world.record(*(world.event(credits=number, admitted_at=NOON + timedelta(seconds=number // 5)) for number in range(1, 24)))
    whole = rows_of(world.sight())
    for page in (1, 2, 5, 23, 24):
        assert rows_of(world.sight(), page=page) == whole
    stored = UsageRecord.objects.filter(organization=world.organization).order_by("admitted_at", "id")
    assert [row["request_id"] for row in whole[:-1]] == [row.request_id for row in stored]


def test_what_is_committed_later_is_not_in_the_middle(world: World) -> None:
    """The cut is made before the first page: later rows stand behind it, also those of an earlier time."""
    world.record(*(world.event(credits=number) for number in (1, 2, 3, 4)))
    file = exports.RowsFile(world.sight(), MONTH, page=2)
    pieces = [file.next_piece(), file.next_piece()]
    world.record(world.event(credits=500, admitted_at=NOON + timedelta(hours=1)), world.event(credits=600, admitted_at=NOON))
    while (piece := file.next_piece()) is not None:
        pieces.append(piece)
    *rows, total = read("".join(piece or "" for piece in pieces))
    assert [row["credits"] for row in rows] == [f"0.00000{number}" for number in (1, 2, 3, 4)]
    assert (total["rows"], total["credits"]) == ("4", "0.00001")
    assert rows_of(world.sight())[-1]["rows"] == "6"


@pytest.mark.django_db(transaction=True)
def test_a_writer_that_is_not_done_is_waited_for() -> None:
    """Its rows have smaller ids than those that are committed before it: without the wait they would come into the middle."""
    world = World()
    began, may_commit = threading.Event(), threading.Event()

    def write() -> None:
        try:
            with transaction.atomic():
                world.record(world.event(credits=5))
                began.set()
                assert may_commit.wait(10)
        finally:
            connection.close()

    writer = threading.Thread(target=write)
    writer.start()
    assert began.wait(10)
    threading.Timer(0.3, may_commit.set).start()
    made = exports.cut(world.organization.pk)
    assert may_commit.is_set()
    (row,) = UsageRecord.objects.filter(organization=world.organization)
    assert row.pk <= made.last_id
    with connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()")
        assert cursor.fetchone() == (0,)
    writer.join(10)
    assert exports.cut(factories.organization().pk).last_id >= made.last_id


def test_the_first_piece_needs_no_query_and_a_page_one(world: World) -> None:
    """The client sees at once that the file comes; names are looked up once, however many pages there are."""
    world.record(*(world.event() for _ in range(6)))
    file = exports.RowsFile(world.sight(), MONTH, page=2)
    with CaptureQueriesContext(connection) as first:
        assert (file.next_piece() or "").startswith("record,rows,")
    assert len(first) == 0
    file.next_piece()
    with CaptureQueriesContext(connection) as second:
        file.next_piece()
    assert len(second) == 1


def fill(key: ApiKey, count: int) -> None:
    """`count` requests, a second apart, of 0.000001 to 0.000009 credits."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO billing_usagerecord (request_id, part, admitted_at, ended_at, organization_id, member_id, key_id, session,
                response_id, model_asked, model_served, tier_asked, tier_billed, input_tokens, cached_input_tokens,
                cache_write_tokens, output_tokens, reasoning_tokens, counted_tokens, counted_requests, credits, from_quota,
                from_purchased, from_overage, overdraft, source, period_starts_at, status, is_estimated, is_implausible,
                is_clamped, trace, lines, stream_id)
            SELECT 'req_' || %s || number, 0, moment, moment, %s, %s, %s, '', '', 'gpt-5.4', 'gpt-5.4', '', '',
                5, 0, 0, 5, 0, 10, 1, 1 + number %% 9, 1 + number %% 9, 0, 0, 0,
                'o', moment, 'ok', false, false, false, '[]', '[]', ''
            FROM (
                SELECT number, %s::timestamptz + number * interval '1 second' AS moment FROM generate_series(1, %s) AS number
            ) AS made
            """,
            [key.public_id, key.organization_id, key.member_id, key.pk, datetime(2026, 11, 1, tzinfo=UTC), count],
        )


def resident_kib() -> int:
    status = Path("/proc/self/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0])


@pytest.mark.django_db(transaction=True)
async def test_a_long_file_takes_no_more_memory_than_a_short_one() -> None:
    """H5's kind: 100,000 rows through the stream; what a tenth of them took is what all take, and well below 50 MB."""
    from tests.flows.tenants import in_thread

    count = 100_000
    world = await in_thread(World)
    await in_thread(fill, world.key, count)
    sight = await in_thread(world.sight)
    before, lines, peak, early = resident_kib(), 0, 0, 0
    last = b""
    async for piece in exports.stream(exports.RowsFile(sight, MONTH)):
        lines += piece.count(b"\r\n")
        last, peak = piece, max(peak, resident_kib())
        if lines <= count // 10:
            early = peak
    assert lines == count + 2
    assert last.decode().split(",")[:2] == ["total", str(count)]
    expected = sum(1 + number % 9 for number in range(1, count + 1))
    assert credits.text(expected) in last.decode().split(",")
    assert peak - early < 10 * 1024
    assert peak - before < 50 * 1024


@pytest.mark.django_db(transaction=True)
async def test_a_client_that_leaves_ends_the_reading() -> None:
    """No page is read that nobody takes, and no connection is held meanwhile."""
    from tests.flows.tenants import in_thread

    world = await in_thread(World)
    await in_thread(fill, world.key, 50)
    file = exports.RowsFile(await in_thread(world.sight), MONTH, page=10)
    stream = exports.stream(file)
    assert [await anext(stream) for _ in range(2)][1].count(b"\r\n") == 10
    await stream.aclose()  # type: ignore[attr-defined]
    assert file.count == 10
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


# ---------------------------------------------------------------------------------------------------------------- ranges


@pytest.mark.parametrize(
    ("start", "end", "says"),
    [
        ("2026-11-31", "2026-12-01", "start '2026-11-31' is not a day"),
        ("yesterday", "2026-12-01", "start 'yesterday' is not a day"),
        ("2026-11-24T12:00:00", "2026-12-01", "neither a day"),
        ("2026-11-24", "2026-11-23", "is empty"),
        ("0001-01-01", "2026-11-23", "is not a day"),
        ("2026-01-01", "9999-12-31", "is not a day"),
        ("9999-12-31T23:59:59-14:00", "9999-12-31", "neither a day"),
        ("2000-01-01", "2026-01-01", "at most 1830 days"),
        ("٢٠٢٦-11-24", "2026-11-25", "is not a day"),
        ("2026-11-24" + "0" * 5000, "2026-11-25", "neither a day"),
        ("", "", "is not a day"),
        ("2026-W01-1", "2026-11-25", "is not a day"),
    ],
)
def test_a_range_that_cannot_be_is_refused_with_its_reason(start: str, end: str, says: str) -> None:
    with pytest.raises(RangeInvalid, match=says) as refused:
        usage_report.parsed(start, end, BERLIN)
    assert len(refused.value.message) < 200


def test_instants_are_half_open_and_days_are_whole() -> None:
    """E12, E16."""
    days = usage_report.parsed("2026-03-29", "2026-03-29", BERLIN)
    assert days.end - days.start == timedelta(hours=23)
    assert (days.first_day, days.last_day) == (date(2026, 3, 29), date(2026, 3, 29))
    instants = usage_report.parsed("2026-11-24T00:00:00+01:00", "2026-11-25T00:00:00+01:00", BERLIN)
    assert instants == usage_report.of_days(date(2026, 11, 24), date(2026, 11, 24), BERLIN)


@pytest.mark.parametrize("text", ["2026-13", "2026-1", "202611", "", "1999-12", "0000-00", "2026-11-01"])
def test_another_month_is_refused(text: str) -> None:
    with pytest.raises(RangeInvalid):
        usage_report.month(text, BERLIN)


def test_a_month_is_the_zones_month() -> None:
    found = usage_report.month("2026-12", BERLIN)
    assert (found.start, found.end) == (datetime(2026, 11, 30, 23, tzinfo=UTC), datetime(2026, 12, 31, 23, tzinfo=UTC))


# --------------------------------------------------------------------------------------------------------------- command


@pytest.fixture
def command_world() -> tuple[World, Organization]:
    world = World()
    now = utc_now()
    world.record(world.event(admitted_at=now, credits=7), world.event(admitted_at=now, credits=8, model="m-2"))
    return world, world.organization


def test_the_command_writes_the_same_files(command_world: tuple[World, Organization], tmp_path: Path) -> None:
    _, organization = command_world
    target, out = tmp_path / "rows.csv", io.StringIO()
    call_command("export_usage", organization.slug, "--rows", "--bom", "--output", str(target), "--json", stdout=out)
    content = target.read_bytes()
    assert f'"bytes": {len(content)}' in out.getvalue()
    *rows, total = read(content.decode("utf-8-sig"))
    assert ([row["account"] for row in rows], total["credits"]) == (["Main key", "Main key"], "0.000015")
    out = io.StringIO()
    call_command("export_usage", organization.slug, "--by", "model", stdout=out, stderr=io.StringIO())
    assert [row["model"] for row in read(out.getvalue())] == ["m-2", "gpt-5.4", ""]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--from", "2026-11-01"], "go together"),
        (["--from", "x", "--to", "2026-11-01"], "--from 'x' is not a day"),
        (["--json"], "name it with --output"),
        (["--rows", "--output", "/nowhere/x.csv"], "cannot be written"),
    ],
)
def test_a_wrong_argument_is_a_clear_error(command_world: tuple[World, Organization], arguments: list[str], says: str) -> None:
    with pytest.raises(CommandError, match=says):
        call_command("export_usage", command_world[1].slug, *arguments)
