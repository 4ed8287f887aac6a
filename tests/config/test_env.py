"""The reader of the environment: typed, and loud without showing a value."""

import base64

import pytest
from django.core.exceptions import ImproperlyConfigured

from config.settings import env

GOOD = {
    "DATABASE_URL": "postgresql://weir:hunter2secret@127.0.0.1/weir",
    "REDIS_URL": "redis://127.0.0.1:6379/0",
    "SECRET_KEY": "s" * 40,
    "ENCRYPTION_KEYS": "k1:abc,k2:def",
    "KEY_PEPPERS": "p1:abc",
}


def test_good_values_are_typed() -> None:
    values = env.read(
        {**GOOD, "HOLD_DEADLINE_SECONDS": "3", "ALLOWED_HOSTS": "a.example, b.example", "TRUSTED_PROXIES": "10.0.0.0/8"}
    )
    assert values.HOLD_DEADLINE_SECONDS == 3.0
    assert values.ALLOWED_HOSTS == ["a.example", "b.example"]
    assert values.TRUSTED_PROXIES == ["10.0.0.0/8"]
    assert list(values.ENCRYPTION_KEYS) == ["k1", "k2"]
    assert values.PROXY_MAX_BODY_BYTES == 16 * 1024 * 1024


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("DATABASE_URL", "", "DATABASE_URL is not set"),
        ("DATABASE_URL", "mysql://hunter2secret@host/db", "DATABASE_URL: is not valid"),
        ("REDIS_URL", "redis://:hunter2secret@127.0.0.1:6379/3", "REDIS_URL: is not valid"),
        ("ENCRYPTION_KEYS", "hunter2secret", "ENCRYPTION_KEYS: must be a list of id:key"),
        ("KEY_PEPPERS", "a:hunter2secret,a:y", "names the key id 'a' twice"),
        ("HOLD_DEADLINE_SECONDS", "0", "must be a number of seconds above 0"),
        ("PROXY_MAX_BODY_BYTES", "many", "PROXY_MAX_BODY_BYTES"),
        ("TRUSTED_PROXIES", "10.0.0.1/8", "TRUSTED_PROXIES"),
        ("UPSTREAM_OPENAI_URL", "ftp://x", "must begin with http:// or https://"),
    ],
)
def test_a_wrong_value_is_named_and_never_shown(name: str, value: str, says: str) -> None:
    with pytest.raises(ImproperlyConfigured) as raised:
        env.read({**GOOD, name: value})
    assert says in str(raised.value)
    assert "hunter2secret" not in str(raised.value)


def test_every_wrong_value_is_named_at_once() -> None:
    with pytest.raises(ImproperlyConfigured) as raised:
        env.read({})
    for name in GOOD:
        assert name in str(raised.value)


def test_secrets_are_not_in_the_repr() -> None:
    assert "hunter2secret" not in repr(env.read(GOOD))


def test_secrets_of_payment_providers_stand_in_a_list_and_may_be_rotated() -> None:
    secret, newer = ("whsec_" + base64.b64encode(bytes([number]) * 24).decode() for number in (1, 2))
    given = {**GOOD, "PAYMENT_WEBHOOK_SECRETS": f"shop:{secret}, shop:{newer},other:{secret}"}
    assert {"shop": (secret, newer), "other": (secret,)} == env.read(given).PAYMENT_WEBHOOK_SECRETS
    assert env.read(GOOD).PAYMENT_WEBHOOK_SECRETS == {}


@pytest.mark.parametrize("text", ["shop", "shop:", ":whsec_AAAA", "shop:whsec_AAAA", "shop:not base64 at all, is it?"])
def test_a_secret_of_a_payment_provider_that_cannot_be_one_is_named_at_start(text: str) -> None:
    with pytest.raises(ImproperlyConfigured) as refused:
        env.read({**GOOD, "PAYMENT_WEBHOOK_SECRETS": text})
    assert "PAYMENT_WEBHOOK_SECRETS: is not valid" in str(refused.value)
    assert text not in str(refused.value)
