"""What an identity provider says: its discovery document, and who a person is, by a token whose signature is checked."""

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jwt

from accounts import identity_http
from accounts.errors import ProviderUnreachable, SignInRefused

WELL_KNOWN = "/.well-known/openid-configuration"
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""By a private key of the provider's. Never "none", never by the client secret, which other people know too."""
LEEWAY_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Discovery:
    """Where a provider is asked what. `userinfo` may be empty."""

    issuer: str
    authorization: str
    token: str
    keys: str
    userinfo: str
    auth_methods: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Claims:
    """Of a token whose signature, issuer, audience, times and nonce were checked; with what the userinfo endpoint adds."""

    subject: str
    email: str = field(repr=False)
    """In lower case; empty if the provider names none that it has verified."""
    name: str = field(repr=False)
    values: Mapping[str, Any] = field(repr=False)


def discover(issuer: str) -> Discovery:
    """Raises ProviderUnreachable, which says what is wrong with the document."""
    answer = identity_http.fetch(issuer.rstrip("/") + WELL_KNOWN, name="The discovery document")
    if answer.status != 200 or not answer.body:
        raise ProviderUnreachable(
            f"The discovery document is not there: status {answer.status} at {issuer.rstrip('/')}{WELL_KNOWN}."
        )
    found = answer.body
    if found.get("issuer") != issuer:
        said = str(found.get("issuer"))[:200]
        raise ProviderUnreachable(f"The discovery document is of the issuer {said}, not of {issuer}: not one letter may differ.")
    userinfo = found.get("userinfo_endpoint") or ""
    methods = found.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
    return Discovery(
        issuer=issuer,
        authorization=identity_http.checked(found.get("authorization_endpoint"), name="The authorization endpoint"),
        token=identity_http.checked(found.get("token_endpoint"), name="The token endpoint"),
        keys=identity_http.checked(found.get("jwks_uri"), name="The address of the keys"),
        userinfo=identity_http.checked(userinfo, name="The userinfo endpoint") if userinfo else "",
        auth_methods=tuple(str(one) for one in methods) if isinstance(methods, list) else (),
    )


def keys_of(discovery: Discovery) -> list[Mapping[str, Any]]:
    """The provider's public keys. Raises ProviderUnreachable."""
    answer = identity_http.fetch(discovery.keys, name="The address of the keys")
    keys = answer.body.get("keys")
    if answer.status != 200 or not isinstance(keys, list):
        raise ProviderUnreachable("The provider's keys are not where its discovery document says.")
    return [key for key in keys if isinstance(key, dict)]


def verified(token: str, *, discovery: Discovery, keys: Sequence[Mapping[str, Any]], client_id: str, nonce: str) -> dict[str, Any]:
    """The claims of an ID token. Raises SignInRefused, which tells what does not hold."""
    try:
        header = jwt.get_unverified_header(token)
        algorithm = str(header.get("alg"))
        if algorithm not in ALGORITHMS:
            raise SignInRefused(f"The provider’s token is signed by “{algorithm[:20]}”, which proves nothing.")
        key = _key(keys, kid=header.get("kid"), algorithm=algorithm)
        claims: dict[str, Any] = jwt.decode(
            token,
            key,
            algorithms=[algorithm],
            audience=client_id,
            issuer=discovery.issuer,
            leeway=LEEWAY_SECONDS,
            options={"require": ["exp", "iat", "iss", "aud", "sub"]},
        )
        if not identity_http.can_be_kept(claims):
            raise ValueError("text that cannot be kept")
    except jwt.ExpiredSignatureError:
        raise SignInRefused("The provider’s token has expired.") from None
    except jwt.InvalidAudienceError:
        raise SignInRefused("The provider’s token is for another client.") from None
    except jwt.InvalidIssuerError:
        raise SignInRefused("The provider’s token is of another issuer.") from None
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        raise SignInRefused("The provider’s token does not hold: its signature or its form is wrong.") from None
    parties = claims["aud"]
    if (isinstance(parties, list) and len(parties) > 1 and "azp" not in claims) or claims.get("azp", client_id) != client_id:
        raise SignInRefused("The provider’s token is for another client.")
    if not nonce or not hmac.compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()):
        raise SignInRefused("The provider’s token belongs to another sign-in.")
    return claims


def _key(keys: Sequence[Mapping[str, Any]], *, kid: object, algorithm: str) -> Any:
    fit = [
        key
        for key in keys
        if key.get("use", "sig") == "sig" and key.get("alg", algorithm) == algorithm and (kid is None or key.get("kid") == kid)
    ]
    if not fit or (kid is None and len(fit) > 1):
        raise SignInRefused("The provider’s token is signed by a key that it does not publish.")
    return jwt.PyJWK(dict(fit[0]), algorithm=algorithm).key


def person(claims: Mapping[str, Any], userinfo: Mapping[str, Any]) -> Claims:
    """Who it is. What the token says goes before what userinfo adds; an address counts where the same answer says it is verified.

    Raises SignInRefused for an answer about somebody else.
    """
    subject = claims["sub"]
    if userinfo and userinfo.get("sub") != subject:
        raise SignInRefused("The provider’s userinfo endpoint tells of another person than its token.")
    values = {**userinfo, **claims}
    named = {str(source["email"]).strip().lower() for source in (claims, userinfo) if source.get("email")}
    proven = {str(source["email"]).strip().lower() for source in (claims, userinfo) if source.get("email") and _is_proven(source)}
    email = proven.pop() if len(named) == 1 and len(proven) == 1 else ""
    name = " ".join(str(values.get("name") or f"{values.get('given_name') or ''} {values.get('family_name') or ''}").split())
    return Claims(subject=subject, email=email, name=name, values=values)


def _is_proven(source: Mapping[str, Any]) -> bool:
    """`email_verified`, or what Entra ID says in its place: the owner of the address's domain is known."""
    return any(source.get(claim) in (True, "true", "1", 1) for claim in ("email_verified", "xms_edov"))
