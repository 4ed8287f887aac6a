"""/api/v1/requests: whose rows, by which filters, piece by piece over the whole time, and one of them with all that is known."""

from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from accounts import api_tokens
from config.clock import utc_now
from tests import factories
from tests.api.calls import Caller, code
from tests.pages import made
from tests.pages.request_rows import SECRET_LABEL, World, refused

pytestmark = pytest.mark.django_db


@pytest.fixture
def world() -> World:
    return World()


def caller(world: World, role: str, team: Any = None) -> Caller:
    return Caller(world.member(role, team), scopes=api_tokens.SCOPES)


def ids(answer: Any) -> list[str]:
    assert answer.status_code == 200, answer.content
    return [row["id"] for row in answer.json()["results"]]


def following(link: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(link).query))


def test_without_a_filter_each_gets_their_reach(world: World) -> None:
    """J1: a developer's own rows only."""
    own = Caller(world.developers["tomasz"], scopes=api_tokens.SCOPES)
    assert set(ids(own.get("requests"))) == world.names("tomasz")
    assert set(ids(caller(world, "lead", world.platform).get("requests"))) == world.names("anselm")
    assert set(ids(caller(world, "lead").get("requests"))) == world.names("tomasz", "anselm", "lena")
    assert code(caller(world, "finance").get("requests")) == (403, "permission_denied")


def test_no_filter_widens_it(world: World) -> None:
    own = Caller(world.developers["tomasz"], scopes=api_tokens.SCOPES)
    other = world.developers["anselm"]
    for name, value in (("member_id", other.uuid), ("team_id", world.platform.uuid), ("account_id", world.account.uuid)):
        assert code(own.get("requests", **{name: str(value)})) == (403, "permission_denied"), name
    assert code(own.get("requests", key_id=str(world.keys["anselm"].uuid))) == (404, "not_found")
    lead = caller(world, "lead", world.quality)
    assert ids(lead.get("requests", member_id=str(other.uuid))) == []
    stranger = World()
    for name, value in (("member_id", stranger.developers["lena"].uuid), ("account_id", stranger.account.uuid)):
        assert code(caller(world, "owner").get("requests", **{name: str(value)})) == (404, "not_found"), name


def test_a_developer_is_told_of_no_account(world: World) -> None:
    """J3: neither in the list nor in one opened, not even by id."""
    own = Caller(world.developers["tomasz"], scopes=api_tokens.SCOPES)
    row = world.rows["tomasz"]
    answers = [own.get("requests"), own.get(f"requests/{row.request_id}"), own.get(f"requests/{world.refusals['tomasz'].uuid}")]
    for answer in answers:
        assert answer.status_code == 200
        text = answer.content.decode()
        assert SECRET_LABEL not in text
        assert str(world.account.uuid) not in text
    opened = answers[1].json()
    assert (opened["account"], opened["account_id"], opened["rankings"]) == (None, None, [])
    assert opened["steps"][1]["account"] == "an account of the pool"
    lead = caller(world, "lead").get(f"requests/{row.request_id}").json()
    assert (lead["account"], lead["account_id"]) == (SECRET_LABEL, str(world.account.uuid))
    assert lead["rankings"][0]["candidates"] == [
        {"account": SECRET_LABEL, "score": "0.4137", "room": "240173.5", "is_chosen": True}
    ]


def test_a_row_tells_exactly_what_was_booked(world: World) -> None:
    row = world.rows["anselm"]
    shown = next(one for one in caller(world, "owner").get("requests").json()["results"] if one["id"] == row.request_id)
    assert (shown["kind"], shown["status"], shown["credits"], shown["model_asked"]) == ("request", "ok", "2", "model-2")
    assert (shown["input_tokens"], shown["cached_input_tokens"], shown["output_tokens"]) == (1200, 3400, 56)
    assert (shown["member_id"], shown["team_id"]) == (str(world.developers["anselm"].uuid), str(world.platform.uuid))
    assert (shown["key"], shown["refusal"], shown["flags"]) == ("key of anselm", None, [])
    opened = caller(world, "owner").get(f"requests/{row.request_id}").json()
    assert {name: opened[name] for name in shown} == shown
    assert opened["funds"] == [{"name": "plan quota", "credits": "2"}]
    assert opened["key_public_id"] == world.keys["anselm"].public_id


def test_a_refusal_says_why(world: World) -> None:
    found = caller(world, "owner").get(f"requests/{world.refusals['lena'].uuid}").json()
    assert (found["kind"], found["status"], found["credits"]) == ("refusal", "refused", "0")
    reason = found["refusal"]
    assert (reason["code"], reason["reason"], reason["count"], reason["metric"]) == ("limit_reached", "daily limit", 1, "credits")
    assert (reason["limit"], reason["used"], reason["held"], reason["need"]) == ("300", "28", "0", "318")
    assert found["title"].endswith("daily limit would have been passed")


def test_one_is_found_by_its_response_and_404_or_403_otherwise(world: World) -> None:
    row = made.used(world.keys["tomasz"], made.CREDIT, response_id="resp_123")
    own, other = (Caller(world.developers[name], scopes=api_tokens.SCOPES) for name in ("tomasz", "anselm"))
    assert own.get("requests/resp_123").json()["id"] == row.request_id
    assert code(other.get("requests/resp_123")) == (403, "permission_denied")
    assert code(other.get(f"requests/{row.request_id}")) == (403, "permission_denied")
    stranger = caller(World(), "owner")
    assert stranger.get(f"requests/{row.request_id}").json() == stranger.get("requests/req_missing").json()
    assert code(stranger.get("requests/resp_123")) == (404, "not_found")


def test_pieces_follow_each_other_in_both_directions(world: World) -> None:
    owner = caller(world, "owner")
    whole = ids(owner.get("requests"))
    assert len(whole) == 6
    first = owner.get("requests", limit="2")
    assert (ids(first), first.json()["previous"]) == (whole[:2], None)
    second = owner.get("requests", **following(first.json()["next"]))
    assert ids(second) == whole[2:4]
    third = owner.get("requests", **following(second.json()["next"]))
    assert (ids(third), third.json()["next"]) == (whole[4:], None)
    assert ids(owner.get("requests", **following(second.json()["previous"]))) == whole[:2]
    cursor = following(first.json()["next"])["cursor"]
    # It holds for this list, these filters and this organization alone.
    assert code(owner.get("requests", cursor=cursor, status="ok")) == (400, "cursor_invalid")
    assert code(caller(World(), "owner").get("requests", cursor=cursor, limit="2")) == (400, "cursor_invalid")
    assert code(owner.get("requests", cursor=cursor[:-2])) == (400, "cursor_invalid")


def test_a_year_is_shown_and_found_by_time_and_status(world: World) -> None:
    """H7."""
    owner, now = caller(world, "owner"), utc_now()
    old = made.used(world.keys["lena"], made.CREDIT, at=now - timedelta(days=360), status="failed")
    seen, page = [], owner.get("requests", limit="1").json()
    for _ in range(40):
        seen += [row["id"] for row in page["results"]]
        if page["next"] is None:
            break
        page = owner.get("requests", **following(page["next"])).json()
    assert len(seen) == len(set(seen)) == 7
    assert seen[-1] == old.request_id
    assert ids(owner.get("requests", status="failed")) == [old.request_id]
    until = (now - timedelta(days=300)).isoformat()
    assert ids(owner.get("requests", end=until)) == [old.request_id]
    assert ids(owner.get("requests", start=until, model="model-1", status="ok")) == [world.rows["tomasz"].request_id]
    assert code(owner.get("requests", start=until, end=until))[0] == 400
    assert code(owner.get("requests", status="none"))[0] == 400


def test_the_queries_do_not_grow_with_the_rows(world: World) -> None:
    """H6: fifty rows cost what a few do."""
    owner = caller(world, "owner")

    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            assert owner.get("requests").status_code == 200
        return len(captured)

    owner.get("requests")
    before = queries()
    for number in range(22):
        key = factories.api_key(factories.member(world.organization)).row
        made.used(key, made.CREDIT, at=utc_now() - timedelta(seconds=number), **world.carried())
        refused(key)
    assert queries() == before
    assert len(ids(owner.get("requests"))) == 50
