"""What tests of second factors do as a person would: an app's codes, signing in, setting a factor up."""

import base64
import hashlib
import hmac
import re
import struct
import time

from allauth.mfa.models import Authenticator
from django.test import Client

from accounts.models import Member
from tests import factories, secrets

SECURITY = "/accounts/security/"
ACTIVATE = "/accounts/2fa/totp/activate/"
CODES = "/accounts/2fa/recovery-codes/"


def code_of(secret: str, *, steps: int = 0) -> str:
    """RFC 6238: what an app shows, `steps` half minutes from now."""
    counter = struct.pack(">Q", int(time.time()) // 30 + steps)
    digest = hmac.new(base64.b32decode(secret), counter, hashlib.sha1).digest()
    at = digest[-1] & 15
    return f"{(struct.unpack('>I', digest[at : at + 4])[0] & 0x7FFFFFFF) % 1_000_000:06d}"


def person(role: str = "developer", **organization: object) -> tuple[Member, str]:
    """A member of an organization of their own, and their password."""
    password = factories.password()
    made = factories.organization(plan=None)
    for name, value in organization.items():
        setattr(made, name, value)
    made.save()
    return factories.member(made, role=role, password=password), password


def entered(member: Member, password: str, **options: object) -> Client:
    """A client that has given the password at the sign-in page."""
    assert member.user is not None
    client = Client(**options)
    client.post("/accounts/login/", {"login": member.user.email, "password": password})
    return client


def confirmed(client: Client, password: str, path: str = ACTIVATE) -> Client:
    """Gives the password again, as a change asks for."""
    answer = client.post(f"/accounts/reauthenticate/?next={path}", {"password": password, "next": path})
    assert answer.status_code == 302, answer.content
    return client


def with_app(client: Client, password: str) -> str:
    """Sets an authenticator app up; its secret."""
    confirmed(client, password)
    page = client.get(ACTIVATE).content.decode()
    found = re.search(r'data-text="([A-Z2-7]{32})"', page)
    assert found is not None
    secret = secrets.register(found[1], "key of an authenticator app")
    # The code of half a minute ago, so that the one of now is not used up.
    answer = client.post(ACTIVATE, {"code": code_of(secret, steps=-1)})
    assert (answer.status_code, answer["location"]) == (302, CODES)
    return secret


def codes_shown(client: Client) -> list[str]:
    page = client.get(CODES).content.decode()
    found = re.search(r'data-text="([0-9 ]+)"', page)
    assert found is not None
    return found[1].split()


def given_app(member: Member) -> Authenticator:
    """A factor without its ceremony, for tests of what follows from having one."""
    from allauth.mfa.totp.internal.auth import TOTP, generate_totp_secret

    return TOTP.activate(member.user, generate_totp_secret()).instance
