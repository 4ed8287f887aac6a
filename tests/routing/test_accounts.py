"""How accounts join, what is kept of them, and which addresses they may have."""

import json
from datetime import date
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from cryptography.fernet import Fernet
from django.conf import settings as django_settings
from django.db import connection

from accounts.models import AuditEvent, Organization
from config import scope, snapshot
from config.clock import utc_now
from routing import accounts, capacity, pools, sealing, snapshots
from routing.errors import (
    AccountError,
    AddressRefused,
    ApiKeyInvalid,
    AuthFileInvalid,
    SealBroken,
    TermsNotAccepted,
)
from routing.models import Pool, PoolAccount
from routing.tokens import AUTH_CLAIM
from tests import secrets
from tests.routing import made

pytestmark = pytest.mark.django_db

OCTOBER, NOVEMBER = "2026-06-01", "2026-11-30"


def api_key(number: int | None = None) -> str:
    return secrets.register(f"sk-test-{number or made.number():040d}", "API key")


def auth_json(account_id: str, user_id: str, **claims: Any) -> dict[str, Any]:
    auth = {"chatgpt_account_id": account_id, "chatgpt_user_id": user_id, "chatgpt_plan_type": claims.pop("plan", "plus")}
    made_tokens = {
        "id_token": made.jwt({"email": claims.pop("email", "dev@example.test"), AUTH_CLAIM: auth}),
        "access_token": made.jwt({"exp": claims.pop("exp", 1_900_000_000)}),
        "refresh_token": f"rt_{made.number():030d}",
    }
    for kind, token in made_tokens.items():
        secrets.register(token, kind)
    return {"auth_mode": "chatgpt", "tokens": {**made_tokens, "account_id": account_id}}


def join(organization: Organization, file: object, **options: Any) -> PoolAccount:
    values: dict[str, Any] = {"label": "Ada's Plus", "accept_terms": True, "by": None, "now": utc_now()}
    return accounts.add_chatgpt(organization, file, **{**values, **options})


def ids() -> tuple[str, str]:
    return f"acct_{made.number()}", f"user_{made.number()}"


# ---------------------------------------------------------------------------------------------------------- sign-in


def test_a_sign_in_joins_the_organizations_own_pool() -> None:
    organization = made.organization()
    before = Organization.objects.get(pk=organization.pk).config_version
    account_id, user_id = ids()
    account = join(organization, auth_json(account_id, user_id, plan="pro", email="ada@example.test"))
    assert (account.pool.name, account.pool.organization) == ("Main", organization)
    assert account.identity == f"{account_id}:{user_id}"
    assert (account.email, account.plan_type, account.weight_on(date(2026, 11, 30))) == ("ada@example.test", "pro", 10_000)
    assert account.access_expires_at is not None
    assert account.access_expires_at.timestamp() == 1_900_000_000
    assert Organization.objects.get(pk=organization.pk).config_version == before + 1
    assert snapshots.load(organization.pk).pools[0].accounts[0].chatgpt_account_id == account_id


def test_without_accepted_terms_nothing_is_added_and_the_text_is_shown() -> None:
    organization = made.organization()
    with pytest.raises(TermsNotAccepted) as refused:
        join(organization, auth_json(*ids()), accept_terms=False)
    assert "may forbid" in refused.value.message
    assert not Pool.objects.filter(organization=organization).exists()
    organization.refresh_from_db()
    assert organization.sign_in_terms_accepted_at is None


def test_accepting_the_terms_is_recorded_and_holds_for_the_next_account() -> None:
    organization = made.organization()
    join(organization, auth_json(*ids()))
    join(organization, auth_json(*ids()), accept_terms=False)
    organization.refresh_from_db()
    assert organization.sign_in_terms_accepted_at is not None
    actions = AuditEvent.objects.filter(organization=organization).order_by("id").values_list("action", flat=True)
    assert list(actions)[1:] == ["organization.sign_in_terms_accepted", "account.added", "account.added"]


def test_the_same_identity_again_renews_its_tokens() -> None:
    organization = made.organization()
    account_id, user_id = ids()
    first = join(organization, auth_json(account_id, user_id))
    accounts.need_sign_in(first.pk, "refresh_token_reused")
    again = auth_json(account_id, user_id)
    second = join(organization, again, label="Ada again")
    assert second.pk == first.pk
    assert (second.status, second.status_reason, second.label) == ("active", "", "Ada again")
    assert second.credential_version == 2
    kept = sealing.unseal(second.refresh_token, account=second.uuid, field="refresh_token")
    assert kept == again["tokens"]["refresh_token"]


def test_one_that_was_moved_to_a_shared_pool_is_renewed_there_by_an_operator_alone() -> None:
    """A second row would spend the refresh token that the first one holds."""
    organization = made.organization()
    other = made.organization()
    account_id, user_id = ids()
    first = join(organization, auth_json(account_id, user_id))
    shared = Pool.objects.create(organization=None, name=f"Shared {made.number()}", plans=["plus"])
    pools.move_account(first, shared, by=None)
    again = auth_json(account_id, user_id)
    for one in (organization, other):
        with scope.organization(one.pk), pytest.raises(AccountError, match="shared pool"):
            accounts.find_sign_in(one, first.identity)
        with scope.organization(one.pk), pytest.raises(AccountError, match="shared pool"):
            join(one, again)
    assert PoolAccount.objects.get(pk=first.pk).credential_version == 1
    before = Organization.objects.get(pk=other.pk).config_version
    with scope.everything():
        found = accounts.find_sign_in(organization, first.identity)
        renewed = join(organization, again)
    assert found is not None
    assert (found.pk, renewed.pk, renewed.pool_id) == (first.pk, first.pk, shared.pk)
    assert PoolAccount.objects.filter(kind="chatgpt", identity=first.identity).count() == 1
    kept = sealing.unseal(renewed.refresh_token, account=renewed.uuid, field="refresh_token")
    assert kept == again["tokens"]["refresh_token"]
    # Whoever may use the shared pool knows of it on the next request.
    assert Organization.objects.get(pk=other.pk).config_version == before + 1
    event = AuditEvent.objects.get(object_id=str(first.uuid), action="account.renewed")
    assert event.organization is None


def test_the_organizations_own_comes_before_a_shared_one() -> None:
    organization = made.organization()
    account_id, user_id = ids()
    moved = join(organization, auth_json(account_id, user_id))
    pools.move_account(moved, Pool.objects.create(organization=None, name=f"Shared {made.number()}"), by=None)
    own = PoolAccount.objects.create(pool=pools.default(organization), kind="chatgpt", label="own", identity=moved.identity)
    with scope.organization(organization.pk):
        found = accounts.find_sign_in(organization, moved.identity)
        assert found is not None
        assert found.pk == own.pk
        assert join(organization, auth_json(account_id, user_id)).pk == own.pk


def test_seats_and_workspaces_are_accounts_of_their_own() -> None:
    """N43: same workspace id, two user ids; and same e-mail, two workspaces: two accounts in both cases."""
    organization = made.organization()
    join(organization, auth_json("acct_shared", "user_1", email="a@example.test"))
    join(organization, auth_json("acct_shared", "user_2", email="b@example.test"))
    join(organization, auth_json("acct_other", "user_1", email="a@example.test"))
    assert PoolAccount.objects.for_organization(organization).count() == 3


@pytest.mark.parametrize(
    "file",
    [
        None,
        [],
        {},
        {"tokens": "text"},
        {"tokens": {"access_token": "a", "refresh_token": "b"}},
        {"tokens": {"access_token": "a", "refresh_token": "b", "id_token": "not.a.jwt"}},
        {"OPENAI_API_KEY": "sk-something", "tokens": None},
    ],
)
def test_a_file_that_is_no_sign_in_is_refused(file: object) -> None:
    organization = made.organization()
    with pytest.raises(AuthFileInvalid):
        join(organization, file)
    assert not PoolAccount.objects.for_organization(organization).exists()


def test_a_named_plan_decides_the_weight_and_an_unknown_one_is_refused() -> None:
    organization = made.organization()
    assert join(organization, auth_json(*ids(), plan="pro"), plan="pro_200").weight_on(date(2026, 11, 30)) == 20_000
    with pytest.raises(AccountError, match="not known"):
        join(organization, auth_json(*ids()), plan="platinum")


# --------------------------------------------------------------------------------------------------------- API keys


def test_an_api_key_joins_and_is_told_apart_by_a_digest() -> None:
    organization = made.organization()
    key = api_key()
    account = accounts.add_key(organization, f"{key}\n", label="Key", by=None, now=utc_now())
    assert (account.kind, account.priority) == ("openai", 10)
    assert account.identity.startswith("key:")
    assert key not in account.identity
    assert sealing.unseal(account.access_token, account=account.uuid, field="access_token") == key
    again = accounts.add_key(organization, key, label="Renamed", by=None, now=utc_now())
    assert (again.pk, again.label, again.credential_version) == (account.pk, "Renamed", 2)


@pytest.mark.parametrize("key", ["", "short", "two words here", "sk-with-ünïcode", "x" * 2000])
def test_what_is_no_api_key_is_refused(key: str) -> None:
    organization = made.organization()
    with pytest.raises(ApiKeyInvalid):
        accounts.add_key(organization, key, label="Key", by=None, now=utc_now())
    assert not PoolAccount.objects.for_organization(organization).exists()


@pytest.mark.parametrize(
    "address",
    [
        "http://127.0.0.1:9/v1",
        "http://localhost/v1",
        "http://10.1.2.3/v1",
        "http://192.168.0.1/v1",
        "http://169.254.169.254/latest",
        "http://[::1]/v1",
        "http://[::ffff:10.0.0.1]/v1",
        "http://[fd00::1]/v1",
        "http://0.0.0.0/v1",
        "http://2130706433/v1",
        "ftp://example.com/v1",
        "https://user:word@1.1.1.1/v1",
        "https://1.1.1.1/v1?a=b",
        "https://1.1.1.1:port/v1",
        "https://host.invalid/v1",
        "nonsense",
    ],
)
def test_an_address_inside_a_private_network_is_refused(address: str) -> None:
    """N72: base_url of an account pointing into a private range."""
    organization = made.organization()
    with pytest.raises(AddressRefused):
        accounts.add_key(organization, api_key(), label="Key", base_url=address, by=None, now=utc_now())
    assert not PoolAccount.objects.for_organization(organization).exists()


def test_a_network_that_the_operator_allowed_may_be_called(settings: Any) -> None:
    """N72: unless the operator allowed that range; their own upstream is trusted."""
    organization = made.organization()
    settings.UPSTREAM_ALLOWED_NETWORKS = ["10.1.0.0/16"]
    settings.UPSTREAM_OPENAI_URL = "http://127.0.0.1:4010/v1"
    for address in ("http://10.1.2.3/v1/", "http://127.0.0.1:4010/v1", "https://1.1.1.1/v1"):
        account = accounts.add_key(organization, api_key(), label="Key", base_url=address, by=None, now=utc_now())
        assert account.base_url == address.rstrip("/")
    with pytest.raises(AddressRefused):
        accounts.add_key(organization, api_key(), label="Key", base_url="http://10.2.0.1/v1", by=None, now=utc_now())


# ---------------------------------------------------------------------------------------------------------- secrets


def test_secrets_are_stored_encrypted_and_bound_to_their_row_and_field() -> None:
    organization = made.organization()
    first, second = join(organization, auth_json(*ids())), join(organization, auth_json(*ids()))
    with pytest.raises(SealBroken, match="another account or field"):
        sealing.unseal(first.access_token, account=second.uuid, field="access_token")
    with pytest.raises(SealBroken, match="another account or field"):
        sealing.unseal(first.access_token, account=first.uuid, field="refresh_token")
    with pytest.raises(SealBroken, match="cannot be decrypted"):
        sealing.unseal(first.access_token[:-4] + "AAAA", account=first.uuid, field="access_token")


def test_the_first_key_encrypts_and_every_configured_key_decrypts(settings: Any) -> None:
    row = uuid4()
    old, new = Fernet.generate_key().decode(), Fernet.generate_key().decode().rstrip("=")
    settings.ENCRYPTION_KEYS = {"old": old}
    sealed = sealing.seal("word", account=row, field="access_token")
    settings.ENCRYPTION_KEYS = {"new": new, "old": old}
    assert sealing.unseal(sealed, account=row, field="access_token") == "word"
    assert sealing.seal("word", account=row, field="access_token").startswith("new:")
    settings.ENCRYPTION_KEYS = {"new": new}
    with pytest.raises(SealBroken, match="does not have"):
        sealing.unseal(sealed, account=row, field="access_token")


def test_no_secret_is_in_the_row_the_snapshot_the_trail_or_a_repr() -> None:
    organization = made.organization()
    file = auth_json(*ids())
    account = join(organization, file)
    key = api_key()
    accounts.add_key(organization, key, label="Key", by=None, now=utc_now())
    with connection.cursor() as cursor:
        cursor.execute("SELECT row_to_json(a)::text FROM routing_poolaccount a")
        stored = " ".join(row[0] for row in cursor.fetchall())
    trail = json.dumps(list(AuditEvent.objects.filter(organization=organization).values("data")), default=str)
    loaded = snapshot.load(organization.pk)
    seen = " ".join([stored, trail, repr(loaded), repr(loaded.routing), repr(account), str(account.__dict__)])
    for secret in (*(value for name, value in file["tokens"].items() if name != "account_id"), key):
        assert secret not in seen


# --------------------------------------------------------------------------------------------------------- capacity


@pytest.mark.parametrize(
    ("plan", "day", "weight"),
    [
        ("plus", OCTOBER, 1000),
        ("pro", OCTOBER, 5000),
        ("pro_200", OCTOBER, 20000),
        ("Plus", NOVEMBER, 1000),
        ("pro", NOVEMBER, 10000),
        ("pro-100", NOVEMBER, 10000),
        ("pro_5x", NOVEMBER, 10000),
        ("pro_20x", NOVEMBER, 20000),
        ("pro_500", NOVEMBER, 50000),
        ("pro_500", OCTOBER, 50000),
        ("team", NOVEMBER, 1000),
        ("business_premium", NOVEMBER, 10000),
        ("unheard of", NOVEMBER, 1000),
    ],
)
def test_the_weight_of_a_plan_is_the_one_in_force_on_the_day(plan: str, day: str, weight: int) -> None:
    assert capacity.weight_thousandths(plan, date.fromisoformat(day)) == weight


def test_the_weights_are_those_of_the_rate_card() -> None:
    (card,) = (json.loads(path.read_text()) for path in Path(django_settings.BASE_DIR).glob("billing/data/codex-*.json"))
    for listed, ours in zip(card["plans"]["weights_in_plus_units"], capacity.DATED, strict=True):
        figures = {name: int(value) * 1000 for name, value in listed.items() if name not in ("as_of", "source", "confidence")}
        assert (listed["source"], figures) == (ours.source, ours.by_plan)
        assert ours.as_of.isoformat().startswith(listed["as_of"])


# ------------------------------------------------------------------------------------------------------ out and back


def test_an_account_that_needs_sign_in_goes_out_once_and_everybody_hears_of_it() -> None:
    """N41: never picked, one alert."""
    organization = made.organization()
    account = join(organization, auth_json(*ids()))
    version = Organization.objects.get(pk=organization.pk).config_version
    assert accounts.need_sign_in(account.pk, "refresh_token_expired")
    assert not accounts.need_sign_in(account.pk, "refresh_token_expired")
    assert Organization.objects.get(pk=organization.pk).config_version == version + 1
    assert snapshots.load(organization.pk).pools[0].accounts[0].status == "needs_sign_in"
    assert AuditEvent.objects.filter(organization=organization, action="account.needs_sign_in").count() == 1


def test_a_loser_does_not_take_out_what_a_winner_renewed() -> None:
    """K1: a loser re-reads instead of clearing."""
    organization = made.organization()
    account_id, user_id = ids()
    account = join(organization, auth_json(account_id, user_id))
    join(organization, auth_json(account_id, user_id))
    assert not accounts.need_sign_in(account.pk, "refresh_token_reused", version=1)
    account.refresh_from_db()
    assert account.status == "active"


def test_another_tenants_pools_are_not_loaded() -> None:
    mine, other = made.organization(), made.organization()
    join(other, auth_json(*ids()))
    assert snapshots.load(mine.pk).pools == ()
