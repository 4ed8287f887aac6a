"""What every call of the API goes through: bodies, parameters, cursors, Idempotency-Keys, how many calls are taken, the schema."""

import base64
import json
import threading
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.core.management import call_command
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext

from accounts.models import ApiKey, IdempotentCall, Member, Team
from api import idempotency, throttling
from api.tasks import forget_idempotent_calls
from config import scope
from config.clock import utc_now
from tests import factories
from tests.api.calls import Caller, code

pytestmark = pytest.mark.django_db


@pytest.fixture
def owner() -> Caller:
    return Caller(factories.member(factories.organization(), role="owner"))


# ------------------------------------------------------------------------------------------------------------- bodies


@pytest.mark.parametrize(
    ("raw", "status", "error"),
    [
        (b"{", 400, "invalid_json"),
        (b"[]", 400, "invalid_json"),
        (b'"x"', 400, "invalid_json"),
        (b'{"name": "a", "name": "b"}', 400, "invalid_json"),
        (b'{"name": NaN}', 400, "invalid_json"),
        (b'{"name": 1e400}', 400, "invalid_json"),
        (b'{"name": ' + b"9" * 5000 + b"}", 400, "invalid_json"),
        (b'{"name": "a\\u0000b"}', 400, "invalid_json"),
        (b'{"name": "\\ud800"}', 400, "invalid_json"),
        (b'{"\\ud800": 1}', 400, "invalid_json"),
        (b'{"name": "\xff"}', 400, "invalid_json"),
        (b'\xef\xbb\xbf{"name": "a"}', 400, "invalid_json"),
        (b'{"name": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, "invalid_json"),
        (b'{"name": ' + b"[" * 100 + b"]" * 100 + b"}", 400, "invalid_json"),
        (b'{"name": "' + b"a" * 1_100_000 + b'"}', 413, "body_too_large"),
        (b'{"name": 5}', 400, "invalid"),
        (b'{"name": true}', 400, "invalid"),
        (b'{"name": null}', 400, "invalid"),
        (b'{"name": ["a"]}', 400, "invalid"),
        (b"{}", 400, "invalid"),
        (b"", 400, "invalid"),
        (b'{"name": "a", "organization": "other"}', 400, "unknown_field"),
        (b'{"name": "a\\u202eb"}', 400, "name_invalid"),
    ],
)
def test_a_body_that_is_not_understood_is_refused_and_makes_nothing(owner: Caller, raw: bytes, status: int, error: str) -> None:
    assert code(owner("POST", "teams", raw=raw)) == (status, error)
    assert not Team.objects.filter(organization=owner.member.organization).exists()


@pytest.mark.parametrize("content_type", ["application/x-www-form-urlencoded", "text/plain", "multipart/form-data; boundary=x", ""])
def test_only_json_is_taken(owner: Caller, content_type: str) -> None:
    headers = {"authorization": f"Bearer {owner.token}"}
    answer = Client().generic("POST", "/api/v1/teams", b'{"name": "a"}', content_type=content_type, headers=headers)
    assert code(answer) == (415, "unsupported_media_type")


def test_every_wrong_field_is_told_by_its_path(owner: Caller) -> None:
    body = {"name": "k", "limits": [{"metric": "credits", "window": "day", "amount": 5}, {"metric": "x", "amount": -1}]}
    error = owner.post("keys", body).json()["error"]
    assert set(error["fields"]) == {"limits.1.metric", "limits.1.amount"}
    assert error["param"] in error["fields"]
    assert not ApiKey.objects.for_organization(owner.member.organization).exists()


def test_a_call_that_takes_no_body_takes_none(owner: Caller) -> None:
    key = factories.api_key(owner.member)
    assert code(owner("DELETE", f"keys/{key.row.uuid}", {"really": True})) == (400, "invalid_json")
    key.row.refresh_from_db()
    assert key.row.revoked_at is None


def test_paths_and_methods_that_are_not_there(owner: Caller) -> None:
    assert code(owner.get("nonsense/place")) == (404, "not_found")
    assert code(owner.get("members/")) == (404, "not_found")
    assert code(owner.get("members/%0A%C3%B3")) == (404, "not_found")
    refused = owner("PUT", "members", {})
    assert (code(refused), set(refused["Allow"].split(", "))) == ((405, "method_not_allowed"), {"GET", "POST", "HEAD"})
    assert code(owner("OPTIONS", "members")) == (405, "method_not_allowed")
    assert owner("HEAD", "members").status_code == 200


def test_messages_are_english_whatever_language_is_asked_for(owner: Caller) -> None:
    headers = {"authorization": f"Bearer {owner.token}"}
    path = f"/api/v1/members/{owner.member.uuid}"
    answers = [Client().delete(path, headers={**headers, "accept-language": language}) for language in ("en", "ru", "vi")]
    assert {code(answer) for answer in answers} == {(409, "last_owner")}
    assert len({answer.content for answer in answers}) == 1
    assert "last owner" in answers[1].json()["error"]["message"]


# ------------------------------------------------------------------------------------------------------------- cursors


def test_pages_are_stable_when_rows_come_and_go(owner: Caller) -> None:
    """A row that was there all the time is seen once, whatever comes meanwhile."""
    keys = [str(factories.api_key(owner.member, name=f"k{n}").row.uuid) for n in range(5)]
    first = owner.get("keys", limit=2).json()
    factories.api_key(owner.member, name="new")
    ApiKey.objects.get(uuid=keys[4]).delete()
    second = owner.get("keys", limit=2, cursor=cursor(first["next"])).json()
    third = owner.get("keys", limit=2, cursor=cursor(second["next"])).json()
    assert [row["id"] for row in (*first["results"], *second["results"], *third["results"])] == keys[::-1]
    assert third["next"] is None
    back = owner.get("keys", limit=2, cursor=cursor(third["previous"])).json()
    assert back["results"] == second["results"]
    assert back["next"] is not None
    newest = owner.get("keys", limit=2, cursor=cursor(back["previous"])).json()
    assert [row["name"] for row in newest["results"]] == ["new", "k3"]
    assert newest["previous"] is None


def cursor(url: str | None) -> str:
    from urllib.parse import parse_qs, urlsplit

    assert url is not None
    return parse_qs(urlsplit(url).query)["cursor"][0]


def test_a_forged_or_foreign_cursor_is_refused(owner: Caller) -> None:
    """Of another organization, another list, other filters, or changed by one character."""
    for _ in range(3):
        factories.api_key(owner.member)
    given = cursor(owner.get("keys", limit=1).json()["next"])
    stranger = Caller(factories.member(factories.organization(), role="owner"))
    changed = given[:-1] + ("A" if given[-1] != "A" else "B")
    tries = [
        stranger.get("keys", cursor=given),
        owner.get("members", cursor=given),
        owner.get("keys", cursor=given, revoked="true"),
        *(owner.get("keys", cursor=text) for text in (changed, "", "x", "a.b", "é", "W10.x")),
    ]
    assert {code(answer) for answer in tries} == {(400, "cursor_invalid")}
    assert owner.get("keys", cursor=given).status_code == 200


def test_a_cursor_tells_nothing_of_what_is_in_it(owner: Caller) -> None:
    """The id of a row would tell how many rows all organizations have; nor are two cursors of one place alike."""
    for _ in range(3):
        factories.api_key(owner.member)
    given = [cursor(owner.get("keys", limit=1).json()["next"]) for _ in range(2)]
    place = str(ApiKey.objects.filter(organization=owner.member.organization).latest("pk").pk).encode()
    assert given[0] != given[1]
    for text in given:
        for part in (text, *text.split(".")):
            raw = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
            assert b"[" + place not in raw
            assert len(raw) < 80


@pytest.mark.parametrize("limit", ["0", "201", "-1", "x", "1.5", "", "9" * 40, "²"])
def test_a_limit_is_1_to_200(owner: Caller, limit: str) -> None:
    assert code(owner.get("members", limit=limit)) == (400, "invalid")


@pytest.mark.parametrize("path", ["members", "teams", "invitations", "keys", "limits", "limit-requests", "refusals"])
def test_the_number_of_queries_of_a_list_does_not_grow(owner: Caller, path: str) -> None:
    """H6's kind."""
    organization = owner.member.organization

    def more(count: int) -> None:
        for _ in range(count):
            member = factories.member(organization, team=factories.team(organization))
            factories.api_key(member)
            made = owner.post(
                "limits", {"scope": "member", "of_id": str(member.uuid), "metric": "credits", "window": "day", "amount": "5"}
            )
            assert made.status_code == 201
            until = (utc_now() + timedelta(days=2)).isoformat()
            asked = Caller(member).post("limit-requests", {"limit_id": made.json()["id"], "extra": 1, "until": until})
            assert asked.status_code == 201
            assert owner.post("members", {"email": f"{factories.unique('new')}@new.example"}).status_code == 201

    more(1)
    owner.get(path)
    with CaptureQueriesContext(connection) as few:
        assert owner.get(path).status_code == 200
    more(3)
    with CaptureQueriesContext(connection) as many:
        assert owner.get(path).status_code == 200
    assert len(many) == len(few)


# --------------------------------------------------------------------------------------------------- Idempotency-Key


def test_the_same_key_again_is_done_once_and_answered_the_same(owner: Caller) -> None:
    """C21: after the first; the secret is not told again, and the answer says so."""
    first = owner.post("keys", {"name": "ci"}, key="once")
    again = owner("POST", "keys", raw=b' {"name":"ci"} ', key="once")
    assert (first.status_code, again.status_code) == (201, 201)
    assert (first.headers.get("Idempotency-Replayed"), again["Idempotency-Replayed"]) == (None, "true")
    assert first.json()["secret"].startswith("wr_")
    assert again.json() == {**first.json(), "secret": None, "secret_note": idempotency.ONLY_ONCE}
    assert ApiKey.objects.for_organization(owner.member.organization).count() == 1
    kept = IdempotentCall.objects.get(member=owner.member)
    assert first.json()["secret"] not in kept.answer


def test_another_body_or_route_under_the_same_key_is_refused(owner: Caller) -> None:
    """C21: 422, nothing done."""
    owner.post("keys", {"name": "ci"}, key="once")
    assert code(owner.post("keys", {"name": "other"}, key="once")) == (422, "idempotency_mismatch")
    assert code(owner.post("teams", {"name": "ci"}, key="once")) == (422, "idempotency_mismatch")
    assert ApiKey.objects.for_organization(owner.member.organization).count() == 1
    assert not Team.objects.filter(organization=owner.member.organization).exists()


def test_the_same_key_of_another_member_is_another_call(owner: Caller) -> None:
    """C21."""
    other = Caller(factories.member(owner.member.organization, role="owner"))
    made = [caller.post("keys", {"name": "ci"}, key="once") for caller in (owner, other)]
    assert [answer.status_code for answer in made] == [201, 201]
    assert made[0].json()["member_id"] != made[1].json()["member_id"]


def test_a_refused_call_keeps_nothing_and_may_be_sent_again(owner: Caller) -> None:
    """C21: the key is free until something was done."""
    assert owner.post("teams", {"name": "\u202e"}, key="once").status_code == 400
    assert owner.post("teams", {"name": "Core"}, key="once").status_code == 201


@pytest.mark.parametrize("key", ["", " ", "a b", "x" * 256, "é", "\x7f"])
def test_a_key_is_visible_ascii(owner: Caller, key: str) -> None:
    assert code(owner.post("teams", {"name": "Core"}, key=key)) == (400, "idempotency_key_invalid")
    assert not Team.objects.filter(organization=owner.member.organization).exists()


def test_a_key_is_forgotten_after_a_day(owner: Caller) -> None:
    owner.post("teams", {"name": "Core"}, key="old")
    owner.post("teams", {"name": "Web"}, key="new")
    rows = IdempotentCall.objects.filter(member=owner.member)
    rows.filter(key="old").update(started_at=utc_now() - timedelta(hours=24, seconds=1))
    with scope.nothing():
        forget_idempotent_calls()
    assert [row.key for row in rows] == ["new"]


@pytest.mark.django_db(transaction=True)
def test_while_the_first_runs_the_second_is_told_to_wait(owner: Caller) -> None:
    """C21: 409, done once; then the first's answer."""
    organization, answers = owner.member.organization, []

    def first() -> None:
        try:
            answers.append(owner.post("teams", {"name": "Core"}, key="once"))
        finally:
            connection.close()

    with transaction.atomic():
        # Whoever makes a team waits for this row: the first call is held in the middle of its work.
        type(organization).objects.select_for_update().get(pk=organization.pk)
        thread = threading.Thread(target=first)
        thread.start()
        in_flight = None
        for _ in range(200):
            in_flight = owner.post("teams", {"name": "Core"}, key="once") if _is_waited_for() else None
            if in_flight is not None:
                break
            thread.join(0.05)
        assert in_flight is not None
        assert code(in_flight) == (409, "idempotency_in_flight")
    thread.join(20)
    assert [answer.status_code for answer in answers] == [201]
    again = owner.post("teams", {"name": "Core"}, key="once")
    assert (again.status_code, again["Idempotency-Replayed"], again.json()) == (201, "true", answers[0].json())
    assert Team.objects.filter(organization=organization).count() == 1


def _is_waited_for() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database "
            "WHERE locktype = 'advisory' AND granted AND datname = current_database()"
        )
        return bool(cursor.fetchone()[0])


@pytest.mark.django_db(transaction=True)
def test_many_at_once_do_it_once(owner: Caller) -> None:
    """C21: eight at the same moment: one makes the key, the others wait for its answer or are given it."""
    answers: list[Any] = []

    def one() -> None:
        try:
            answers.append(owner.post("keys", {"name": "ci"}, key="once"))
        finally:
            connection.close()

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    told = [answer for answer in answers if answer.status_code == 201]
    assert len({answer.json()["id"] for answer in told}) == 1
    assert sum("Idempotency-Replayed" not in answer.headers for answer in told) == 1
    assert {answer.status_code for answer in answers} <= {201, 409}
    assert ApiKey.objects.for_organization(owner.member.organization).count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_call_that_crashed_left_nothing_and_is_done_by_the_next(owner: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    """C21: the process dies after the work and before the commit."""

    def crash(*args: Any, **fields: Any) -> None:
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(IdempotentCall.objects, "create", crash)
        with pytest.raises(SystemExit):
            owner.post("teams", {"name": "Core"}, key="once")
    assert not Team.objects.filter(organization=owner.member.organization).exists()
    answer = owner.post("teams", {"name": "Core"}, key="once")
    assert (answer.status_code, answer.headers.get("Idempotency-Replayed")) == (201, None)


# ---------------------------------------------------------------------------------------------------------- throttling


def test_too_many_calls_of_a_token_are_told_when_to_come_back(owner: Caller, settings: Any) -> None:
    """Two a minute, one at once: the second has to wait for up to half a minute; another token has not."""
    settings.API_REQUESTS_PER_MINUTE = 2
    first, second = owner.get("me"), owner.get("me")
    assert (first.status_code, code(second)) == (200, (429, "throttled"))
    assert 1 <= int(second["Retry-After"]) <= 30
    assert Caller(owner.member).get("me").status_code == 200


def test_more_tokens_are_not_ever_more_calls(owner: Caller, settings: Any) -> None:
    """Anybody may make tokens: all of one member together call as often as five would, whoever else calls."""
    settings.API_REQUESTS_PER_MINUTE = 5
    answers = [Caller(owner.member).get("me") for _ in range(7)]
    assert [answer.status_code for answer in answers] == [200] * 5 + [429] * 2
    assert answers[-1].json()["error"]["message"].startswith("Too many calls with all of your tokens. Try again in ")
    assert Caller(factories.member(owner.member.organization)).get("me").status_code == 200


def test_too_many_failed_calls_of_an_address_are_held_back_and_nobody_else(
    owner: Caller, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.API_REQUESTS_PER_MINUTE = 600
    monkeypatch.setattr(throttling, "FAILED_PER_MINUTE", 1)
    monkeypatch.setattr(throttling, "FAILED_AT_ONCE", 3)
    # One network of IPv6 is one caller, whichever of its addresses is used.
    network = f"2001:db8:{owner.member.pk & 0xFFFF:x}:{owner.member.pk >> 16 & 0xFFFF:x}"

    def call(last: int, token: str) -> Any:
        return Client().get("/api/v1/me", headers={"authorization": f"Bearer {token}"}, REMOTE_ADDR=f"{network}::{last:x}")

    answers = [call(number, "wt_nonsense") for number in range(1, 6)]
    assert [answer.status_code for answer in answers] == [401] * 3 + [429] * 2
    assert code(answers[-1]) == (429, "throttled")
    assert call(1, owner.token).status_code == 200
    assert Client().get("/api/v1/me", REMOTE_ADDR=f"2001:db8:ffff:{owner.member.pk & 0xFFFF:x}::1").status_code == 401


def test_without_redis_nobody_is_held_back(owner: Caller, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing listens there."""
    settings.API_REQUESTS_PER_MINUTE = 1
    nowhere = redis.Redis.from_url("redis://127.0.0.1:9/0", socket_connect_timeout=1)
    monkeypatch.setattr(throttling.weir_redis, "sync_client", lambda: nowhere)
    assert [owner.get("me").status_code for _ in range(3)] == [200] * 3


# -------------------------------------------------------------------------------------------------------------- schema


def test_the_schema_is_valid_and_nothing_about_it_is_doubtful(tmp_path: Any) -> None:
    path = tmp_path / "schema.json"
    call_command("spectacular", "--validate", "--fail-on-warn", "--format", "openapi-json", "--file", str(path))
    schema = json.loads(path.read_text())
    operations = [one for path in schema["paths"].values() for one in path.values()]
    assert schema["openapi"] == "3.1.0"
    assert len({one["operationId"] for one in operations}) == len(operations)
    assert all({"400", "401", "403", "429", "503"} <= set(one["responses"]) for one in operations)
    assert all(one["security"] and one["summary"] and one["x-scope"] for one in operations)


def test_the_schema_and_its_page_are_there_offline() -> None:
    """Nothing is fetched from elsewhere: the page's own policy forbids it."""
    client = Client()
    assert client.get("/api/v1/schema").json()["openapi"] == "3.1.0"
    page = client.get("/api/v1/docs")
    content = page.content.decode()
    policy = page["Content-Security-Policy"]
    assert page.status_code == 200
    assert "http://" not in content
    assert "https://" not in content
    assert "default-src 'self'" in policy
    assert "script-src" not in policy
    assert "style-src 'self' 'unsafe-inline'" in policy
    assert "unsafe" not in client.get("/accounts/login/")["Content-Security-Policy"]


def test_a_member_who_leaves_or_an_organization_that_is_suspended_ends_the_tokens(owner: Caller) -> None:
    other = Caller(factories.member(owner.member.organization, role="owner"))
    assert owner.delete(f"members/{other.member.uuid}").status_code == 204
    assert other.get("me").status_code == 401
    assert Member.objects.get(pk=other.member.pk).removed_at is not None
