"""Alerts on their way: e-mails in the pages' words, signed webhooks to a real receiver, retries, and what ends them."""

import json
import threading
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.core import mail
from django.db import connections
from standardwebhooks import Webhook, WebhookVerificationError

from accounts import members
from accounts.models import AuditEvent
from config import addresses, sealing
from config.clock import utc_now
from quotas.alerts import delivery, endpoints, messages, tasks
from quotas.alerts.models import Alert, AlertDelivery, WebhookEndpoint
from quotas.errors import EndpointRefused
from tests import secrets
from tests.quotas.alerting import Receiver, World, receiver

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def loopback_is_allowed(settings: Any) -> None:
    settings.UPSTREAM_ALLOWED_NETWORKS = ["127.0.0.0/8"]


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def remote() -> Any:
    with receiver() as made:
        yield made


def endpoint(world: World, remote: Receiver, *, format: str = "standard", name: str = "chat-bridge") -> endpoints.Made:
    made = endpoints.add(world.organization, name=name, url=remote.url, format=format, by=None, now=utc_now())
    secrets.register(remote.url, "a webhook's URL")
    if made.secret:
        secrets.register(made.secret, "a webhook's secret")
    return made


def crossed(world: World) -> Alert:
    """The member's daily limit of 1,000 credits at 80 %."""
    world.limit("1000")
    world.spend(728 + 72)
    (alert,) = world.look()
    return alert


def rows(alert: Alert, **about: Any) -> list[AlertDelivery]:
    return list(AlertDelivery.objects.filter(alert=alert, **about).order_by("pk"))


def deliver(world: World, *, later: timedelta = timedelta()) -> int:
    tried = 0
    while count := delivery.deliver(world.organization, now=utc_now() + later):
        tried += count
    return tried


class TestMail:
    def test_each_is_written_to_once_in_the_words_of_the_pages(self, world: World) -> None:
        alert = crossed(world)
        assert deliver(world) == 4
        assert deliver(world) == 0
        by_person = {message.to[0]: message for message in mail.outbox}
        emails = {name: person.user.email for name, person in world.people.items() if person.user}
        assert set(by_person) == {emails[name] for name in ("developer", "team lead", "lead", "owner")}
        own = by_person[emails["developer"]]
        assert own.subject == f"You: at most 20 % of the daily limit left · {world.organization.name}"
        body = str(own.body)
        assert "200 of 1,000 credits left.\nResets " in body
        assert ", 00:00 (Europe/Berlin).\nNext told at 5 % left.\n" in body
        assert "Ask for more:\nhttp" in body
        assert f"/o/{world.organization.slug}/key?ask={alert.limit_uuid}\n" in body
        assert "You are told once for this line, because it is yours. All alerts:\n" in body
        theirs = str(by_person[emails["owner"]].body)
        assert theirs.startswith("Tomasz Wrona: at most 20 % of the daily limit left.\n")
        assert "Change limit:\nhttp" in theirs
        assert f"because you look after it in {world.organization.name}." in theirs
        ids = {message.extra_headers["Message-ID"] for message in mail.outbox}
        assert {row.uuid for row in rows(alert)} == {UUID(one[1:].partition("@")[0]) for one in ids}
        assert {(row.status, row.attempts, row.next_try_at) for row in rows(alert)} == {("sent", 1, None)}

    def test_a_server_that_refuses_is_tried_again_with_growing_pauses_and_the_same_id(self, world: World, settings: Any) -> None:
        alert = crossed(world)
        good = settings.EMAIL_BACKEND
        settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
        settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", 9
        now = utc_now()
        assert delivery.deliver(world.organization, now=now) == 4
        for row in rows(alert):
            assert (row.status, row.attempts, row.error) == ("pending", 1, "mail server: ConnectionRefusedError")
            assert row.next_try_at is not None
            assert timedelta(seconds=30) <= row.next_try_at - now <= timedelta(seconds=33)
        assert delivery.deliver(world.organization, now=now + timedelta(seconds=29)) == 0
        settings.EMAIL_BACKEND = good
        assert delivery.deliver(world.organization, now=now + timedelta(seconds=40)) == 4
        assert {row.status for row in rows(alert)} == {"sent"}
        assert len(mail.outbox) == 4

    def test_who_left_before_it_was_sent_gets_nothing(self, world: World) -> None:
        alert = crossed(world)
        members.remove(world["team lead"], by=None, now=utc_now())
        members.change(world["lead"], role="developer", team=None, by=None, now=utc_now())
        assert deliver(world) == 4
        assert len(mail.outbox) == 2
        dropped = {row.error for row in rows(alert, status="dropped")}
        assert dropped == {"the member has left", "the member may not see it any more"}

    def test_a_name_cannot_write_headers(self, world: World) -> None:
        type(world.organization).objects.filter(pk=world.organization.pk).update(name="A\nBcc: evil@example.com")
        crossed(world)
        deliver(world)
        assert len(mail.outbox) == 4
        assert all("\n" not in message.subject and len(message.recipients()) == 1 for message in mail.outbox)


class TestWebhook:
    def test_a_signed_message_that_the_receiver_can_verify(self, world: World, remote: Receiver) -> None:
        made = endpoint(world, remote)
        alert = crossed(world)
        deliver(world)
        (got,) = remote.received
        assert got.path == "/hooks/secret-place?token=t1"
        assert got.headers["host"] == f"127.0.0.1:{remote.port}"
        found = Webhook(made.secret).verify(got.body, got.headers)
        (row,) = rows(alert, channel="webhook")
        assert got.headers["webhook-id"] == f"msg_{row.uuid.hex}"
        assert found["type"] == "alert.limit"
        assert found["timestamp"] == alert.told_at.isoformat()
        data = found["data"]
        assert (data["id"], data["line"], data["organization"]) == (str(alert.uuid), 80, world.organization.slug)
        assert (data["amount_used"], data["amount_limit"], data["metric"], data["window"]) == ("800", "1000", "credits", "day")
        assert (data["member"], data["team"], data["limit"]) == (str(world.member.uuid), None, str(alert.limit_uuid))
        assert data["title"] == "Tomasz Wrona: at most 20 % of the daily limit left"
        assert data["url"].endswith(f"/o/{world.organization.slug}/members/{world.member.uuid}?edit={alert.limit_uuid}")
        assert (row.status, row.response_code, row.attempts) == ("sent", 204, 1)
        assert row.duration_ms is not None
        with pytest.raises(WebhookVerificationError):
            Webhook(made.secret).verify(got.body.replace(b"800", b"801"), got.headers)
        with pytest.raises(WebhookVerificationError):
            Webhook(endpoints._new_secret()).verify(got.body, got.headers)

    def test_a_chat_gets_a_text_and_a_name_cannot_write_links_in_it(self, world: World, remote: Receiver) -> None:
        endpoint(world, remote, format="slack", name="chat")
        type(world.member).objects.filter(pk=world.member.pk).update(display_name="<!channel> & <http://evil|x>")
        crossed(world)
        deliver(world)
        (got,) = remote.received
        assert set(got.json) == {"text"}
        first, second, third = got.json["text"].split("\n")
        assert first.startswith("*&lt;!channel&gt; &amp; &lt;http://evil|x&gt;: at most 20 % of the daily limit left* (")
        assert second.startswith("200 of 1,000 credits left · resets ")
        assert third.endswith("|Change limit>")
        assert "webhook-signature" not in got.headers

    def test_a_receiver_that_fails_is_tried_again_with_the_same_id_until_it_takes_it(self, world: World, remote: Receiver) -> None:
        made = endpoint(world, remote)
        alert = crossed(world)
        remote.statuses = [503, 500, 302, 200]
        remote.location = "http://127.0.0.1:9/elsewhere"
        waited = timedelta()
        for number in range(4):
            (row,) = rows(alert, channel="webhook")
            assert (row.status, row.attempts) == ("pending", number)
            waited += timedelta(seconds=([0, *delivery.TRY_SECONDS][number]) * 1.2)
            deliver(world, later=waited)
        (row,) = rows(alert, channel="webhook")
        assert (row.status, row.attempts, row.response_code) == ("sent", 4, 200)
        assert len(remote.received) == 4
        assert {got.headers["webhook-id"] for got in remote.received} == {f"msg_{row.uuid.hex}"}
        stamps = [int(got.headers["webhook-timestamp"]) for got in remote.received]
        assert stamps == sorted(stamps)
        assert stamps[0] < stamps[-1]
        assert all(Webhook(made.secret).sign(got.headers["webhook-id"], utc_now(), "") for got in remote.received)

    def test_after_eight_tries_in_a_day_it_is_given_up(self, world: World, remote: Receiver) -> None:
        endpoint(world, remote)
        alert = crossed(world)
        remote.statuses = [500]
        later = timedelta()
        for seconds in (0, *delivery.TRY_SECONDS):
            later += timedelta(seconds=seconds * 1.2 + 1)
            deliver(world, later=later)
        (row,) = rows(alert, channel="webhook")
        assert (row.status, row.attempts, row.response_code, row.next_try_at) == ("failed", delivery.TRIES, 500, None)
        assert len(remote.received) == delivery.TRIES == 8
        assert timedelta(hours=20) < timedelta(seconds=sum(delivery.TRY_SECONDS)) < timedelta(hours=24)
        deliver(world, later=timedelta(days=3))
        assert len(remote.received) == 8

    def test_one_that_answers_410_is_disabled_and_what_waits_for_it_dropped(self, world: World, remote: Receiver) -> None:
        made = endpoint(world, remote)
        alert = crossed(world)
        waiting = AlertDelivery.objects.create(
            organization=world.organization,
            channel="webhook",
            endpoint=made.endpoint,
            created_at=utc_now(),
            next_try_at=utc_now() + timedelta(hours=1),
        )
        remote.statuses = [410]
        deliver(world)
        made.endpoint.refresh_from_db()
        assert made.endpoint.disabled_at is not None
        assert made.endpoint.disabled_reason == "It answered 410: gone."
        (row,) = rows(alert, channel="webhook")
        assert (row.status, row.response_code, row.error) == ("failed", 410, "the endpoint is gone")
        waiting.refresh_from_db()
        assert (waiting.status, waiting.error) == ("dropped", "the endpoint is disabled")
        event = AuditEvent.objects.get(organization=world.organization, action="webhook_endpoint.disabled")
        assert (event.actor_label, event.data["name"]) == ("system", "chat-bridge")
        world.spend(200)
        (alert,) = world.look()
        assert rows(alert, channel="webhook") == []
        deliver(world)
        assert len(remote.received) == 1
        assert endpoints.resume(made.endpoint, by=None)
        assert not endpoints.resume(made.endpoint, by=None)

    def test_nobody_listens_and_nobody_answers(self, world: World, remote: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
        """A receiver that draws its answer out delays its own message alone, and for so long only."""
        monkeypatch.setattr("quotas.alerts.posting.TOTAL_SECONDS", 0.3)
        slow = threading.Event()
        with receiver() as other:
            endpoint(world, remote)
            other.before = lambda: slow.wait(3) and None
            endpoint(world, other, name="slow")
            gone = WebhookEndpoint.objects.create(
                organization=world.organization, name="gone", format="slack", origin="http://127.0.0.1:9"
            )
            gone.url = sealing.seal("http://127.0.0.1:9/", row=gone.uuid, field="url")
            gone.save()
            alert = crossed(world)
            deliver(world)
            slow.set()
        by_name = {str(row.endpoint): row for row in rows(alert) if row.endpoint}
        assert by_name["chat-bridge"].status == "sent"
        assert (by_name["slow"].status, by_name["slow"].error) == ("pending", "no answer within 0.3 seconds")
        assert (by_name["gone"].status, by_name["gone"].error) == ("pending", "no connection")

    def test_two_workers_send_each_message_once(self, world: World, remote: Receiver) -> None:
        endpoint(world, remote)
        crossed(world)
        start, tried = threading.Barrier(3), []

        def work() -> None:
            try:
                start.wait()
                tried.append(deliver(world))
            finally:
                connections.close_all()

        workers = [threading.Thread(target=work) for _ in range(3)]
        for one in workers:
            one.start()
        for one in workers:
            one.join()
        assert (sum(tried), len(remote.received), len(mail.outbox)) == (5, 1, 4)

    def test_what_a_worker_left_behind_is_sent_by_another_under_the_same_id(self, world: World, remote: Receiver) -> None:
        """At least once: it died after the receiver had it, and before that was written down."""
        endpoint(world, remote)
        alert = crossed(world)
        claimed = delivery._claim(world.organization, utc_now(), 20)
        delivery._post_all([row for row in claimed if row.endpoint], utc_now())
        assert deliver(world) == 0
        assert deliver(world, later=timedelta(seconds=delivery.CLAIM_SECONDS + 1)) == 5
        (row,) = rows(alert, channel="webhook")
        assert (row.status, row.attempts) == ("sent", 2)
        assert [got.headers["webhook-id"] for got in remote.received] == [f"msg_{row.uuid.hex}"] * 2

    def test_due_deliveries_are_asked_for_by_organization(
        self, world: World, remote: Receiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        endpoint(world, remote)
        crossed(world)
        asked: list[int] = []
        monkeypatch.setattr(tasks.deliver, "delay", asked.append)
        assert tasks.deliver_due() == len(asked) >= 1
        assert asked.count(world.organization.pk) == 1
        monkeypatch.undo()
        assert tasks.deliver(world.organization.pk) == 5
        assert len(remote.received) == 1


class TestEndpoints:
    def test_its_secret_and_url_are_nowhere_in_the_clear(self, world: World, remote: Receiver) -> None:
        made = endpoint(world, remote)
        stored = json.dumps(list(WebhookEndpoint.objects.filter(pk=made.endpoint.pk).values()), default=str)
        assert made.secret.startswith("whsec_")
        assert made.secret not in stored
        assert "secret-place" not in stored
        assert made.endpoint.origin == f"http://127.0.0.1:{remote.port}"
        assert endpoints.unsealed(made.endpoint, "secret") == made.secret
        assert made.secret not in repr(made)
        event = AuditEvent.objects.get(organization=world.organization, action="webhook_endpoint.added")
        assert "secret-place" not in json.dumps(event.data)

    def test_a_ciphertext_in_another_row_opens_nothing(self, world: World, remote: Receiver) -> None:
        first, second = endpoint(world, remote), endpoint(world, remote, name="second")
        WebhookEndpoint.objects.filter(pk=second.endpoint.pk).update(url=first.endpoint.url)
        second.endpoint.refresh_from_db()
        alert = crossed(world)
        deliver(world)
        row = AlertDelivery.objects.get(alert=alert, endpoint=second.endpoint)
        assert (row.status, row.error) == ("pending", "its address or secret cannot be decrypted")
        assert len(remote.received) == 1

    @pytest.mark.parametrize(
        ("url", "word"),
        [
            ("http://10.0.0.1/hook", "private network"),
            ("https://169.254.169.254/latest", "private network"),
            ("https://[::ffff:10.0.0.1]/", "private network"),
            ("https://localhost.invalid/", "cannot be found"),
            ("ftp://1.1.1.1/", "begins with https://"),
            ("http://1.1.1.1/", "begins with https://"),
            ("https://a:b@1.1.1.1/", "no user and no password"),
            ("https://1.1.1.1/a b", "no blanks"),
            ("https://1.1.1.1/#a", "no blanks"),
            ("https://1.1.1.1:99999/", "host or port"),
            ("https://[1.1.1.1/", "host or port"),
            ("https:///x", "names a host"),
            ("https://1.1.1.1/" + "a" * 2000, "at most 2,000"),
            ("", "begins with https://"),
        ],
    )
    def test_an_address_that_must_not_be_called_makes_none(self, world: World, url: str, word: str) -> None:
        """N72: by the rule that accounts' base URLs keep to."""
        with pytest.raises(EndpointRefused, match=word) as caught:
            endpoints.add(world.organization, name="x", url=url, format="standard", by=None, now=utc_now())
        assert caught.value.facts["field"] == "url"
        assert not WebhookEndpoint.objects.filter(organization=world.organization).exists()

    def test_a_network_that_is_forbidden_later_is_not_called(self, world: World, remote: Receiver, settings: Any) -> None:
        """N72: judged at each try, and connected to as judged."""
        made = endpoint(world, remote)
        alert = crossed(world)
        settings.UPSTREAM_ALLOWED_NETWORKS = []
        deliver(world)
        (row,) = rows(alert, channel="webhook")
        assert row.status == "pending"
        assert "private network" in row.error
        assert delivery.test(made.endpoint, now=utc_now()).status == "failed"
        assert remote.received == []

    def test_the_post_goes_to_the_address_that_was_judged(
        self, world: World, remote: Receiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """N72: a name that has another address a moment later: it is connected to as it was judged, and the host stays its own."""
        real, looked_up = addresses._addresses, []

        def only_here(host: str, port: int) -> Any:
            looked_up.append(host)
            return real("127.0.0.1", port)

        monkeypatch.setattr(addresses, "_addresses", only_here)
        url = f"http://weir-hook.invalid:{remote.port}/x"
        made = endpoints.add(world.organization, name="by name", url=url, format="slack", by=None, now=utc_now())
        assert delivery.test(made.endpoint, now=utc_now()).status == "sent"
        (got,) = remote.received
        assert got.headers["host"] == f"weir-hook.invalid:{remote.port}"
        assert looked_up == ["weir-hook.invalid"] * 2

    def test_names_are_unique_without_case_and_there_are_at_most_twenty(self, world: World, remote: Receiver) -> None:
        endpoint(world, remote)
        with pytest.raises(EndpointRefused, match="already") as caught:
            endpoint(world, remote, name="Chat-Bridge")
        assert caught.value.facts["field"] == "name"
        for number in range(endpoints.MOST - 1):
            endpoint(world, remote, name=f"e{number}")
        with pytest.raises(EndpointRefused, match="20 endpoints"):
            endpoint(world, remote, name="one more")

    def test_a_rotated_secret_signs_beside_the_old_one_for_a_day(self, world: World, remote: Receiver) -> None:
        old = endpoint(world, remote)
        new = endpoints.rotate(old.endpoint, by=None, now=utc_now(), seen="0")
        secrets.register(new.secret, "a webhook's secret")
        assert new.secret != old.secret
        with pytest.raises(EndpointRefused, match="a moment ago"):
            endpoints.rotate(old.endpoint, by=None, now=utc_now(), seen="0")
        crossed(world)
        deliver(world)
        (got,) = remote.received
        assert len(got.headers["webhook-signature"].split()) == 2
        for secret in (old.secret, new.secret):
            assert Webhook(secret).verify(got.body, got.headers)["type"] == "alert.limit"
        row = AlertDelivery.objects.get(endpoint=old.endpoint)
        new.endpoint.refresh_from_db()
        later = utc_now() + timedelta(days=1, seconds=5)
        assert len(messages.signed(row, new.endpoint, b"{}", later)["webhook-signature"].split()) == 1

    def test_a_chats_endpoint_has_no_secret_to_rotate(self, world: World, remote: Receiver) -> None:
        made = endpoint(world, remote, format="slack")
        assert made.secret == ""
        with pytest.raises(EndpointRefused, match="not signed"):
            endpoints.rotate(made.endpoint, by=None, now=utc_now())

    def test_a_removed_one_keeps_its_log_and_no_secret(self, world: World, remote: Receiver) -> None:
        made = endpoint(world, remote)
        alert = crossed(world)
        endpoints.remove(made.endpoint, by=None, now=utc_now())
        made.endpoint.refresh_from_db()
        assert (made.endpoint.url, made.endpoint.secret, made.endpoint.previous_secret) == ("", "", "")
        (row,) = rows(alert, channel="webhook")
        assert (row.status, row.error) == ("dropped", "the endpoint was removed")
        deliver(world)
        assert remote.received == []
        with pytest.raises(EndpointRefused, match="removed"):
            endpoints.remove(made.endpoint, by=None, now=utc_now())
        with pytest.raises(EndpointRefused, match="removed"):
            endpoints.resume(made.endpoint, by=None)
        with pytest.raises(EndpointRefused, match="removed"):
            delivery.test(made.endpoint, now=utc_now())
        endpoint(world, remote)

    @pytest.mark.parametrize("format", ["standard", "slack"])
    def test_a_test_is_sent_once_and_told(self, world: World, remote: Receiver, format: str) -> None:
        made = endpoint(world, remote, format=format)
        assert delivery.test(made.endpoint, now=utc_now()).status == "sent"
        (got,) = remote.received
        if format == "standard":
            assert Webhook(made.secret).verify(got.body, got.headers)["type"] == "alert.test"
        else:
            assert "A test of" in got.json["text"]
        remote.statuses = [500]
        failed = delivery.test(made.endpoint, now=utc_now())
        assert (failed.status, failed.response_code, failed.next_try_at) == ("failed", 500, None)
        deliver(world, later=timedelta(days=1))
        assert len(remote.received) == 2
