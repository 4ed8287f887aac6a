"""A small OpenID Connect provider on a loopback socket: discovery, authorize, token, keys (RS256), userinfo. Faults are scripted.

Whoever is asked to sign in there is `person`; each code works once and is bound to its PKCE challenge, as the standard says.
"""

import base64
import hashlib
import json
import secrets
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

CLIENT_ID = "weir-at-the-provider"


@dataclass
class Code:
    """What a code was given for."""

    person: dict[str, Any]
    nonce: str
    challenge: str
    redirect_uri: str


@dataclass
class OidcProvider:
    """`claims`: put over the token's (None takes one away). `faults`: see `_Handler`. `asked`: every request's path and form."""

    client_secret: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    person: dict[str, Any] = field(default_factory=dict)
    claims: dict[str, Any] = field(default_factory=dict)
    faults: dict[str, Any] = field(default_factory=dict)
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    codes: dict[str, Code] = field(default_factory=dict)
    tokens: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.other_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        handler = type("Handler", (_Handler,), {"provider": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    @property
    def issuer(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def reset(self) -> None:
        self.person, self.claims, self.faults = {}, {}, {}
        self.asked.clear()

    def discovery(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
            "userinfo_endpoint": f"{self.issuer}/userinfo",
            "token_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post"],
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
            **self.faults.get("discovery", {}),
        }

    def id_token(self, code: Code) -> str:
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "aud": CLIENT_ID,
            "iat": now,
            "exp": now + 300,
            "nonce": code.nonce,
            **code.person,
            **self.claims,
        }
        claims = {name: value for name, value in claims.items() if value is not None}
        match self.faults.get("signed"):
            case "none":
                return jwt.encode(claims, None, algorithm="none")
            case "secret":
                return jwt.encode(claims, self.client_secret, algorithm="HS256", headers={"kid": "1"})
            case "other":
                return jwt.encode(claims, self.other_key, algorithm="RS256", headers={"kid": "1"})
            case _:
                return jwt.encode(claims, self.key, algorithm="RS256", headers={"kid": "1"})


class _Handler(BaseHTTPRequestHandler):
    """Faults: `discovery` (dict over the document), `signed` ("none", "secret", "other"), `redirect` (a path that answers with
    one), `endless` (a path whose answer does not end), `error` (what authorize answers in place of a code), `userinfo` (dict)."""

    provider: OidcProvider
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self.provider.asked.append((parts.path, query))
        faults = self.provider.faults
        if parts.path == faults.get("redirect"):
            return self._redirect(f"{self.provider.issuer}/elsewhere")
        if parts.path == faults.get("endless"):
            return self._endless()
        match parts.path:
            case "/.well-known/openid-configuration":
                return self._json(self.provider.discovery())
            case "/keys":
                public = jwt.algorithms.RSAAlgorithm.to_jwk(self.provider.key.public_key(), as_dict=True)
                return self._json({"keys": [{**public, "kid": "1", "use": "sig", "alg": "RS256"}]})
            case "/authorize":
                return self._authorize(query)
            case "/userinfo":
                found = self.provider.tokens.get(self.headers.get("authorization", "").removeprefix("Bearer "))
                return self._json({**found, **faults.get("userinfo", {})}) if found else self._json({}, 401)
        return self._json({"error": "not_found"}, 404)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
        form = {name: values[0] for name, values in parse_qs(body).items()}
        self.provider.asked.append((self.path, form))
        if self.path != "/token":
            return self._json({"error": "not_found"}, 404)
        code = self.provider.codes.pop(form.get("code", ""), None)
        verifier = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(verifier).rstrip(b"=").decode()
        if form.get("client_id") != CLIENT_ID or form.get("client_secret") != self.provider.client_secret:
            return self._json({"error": "invalid_client"}, 401)
        if code is None or code.challenge != challenge or form.get("redirect_uri") != code.redirect_uri:
            return self._json({"error": "invalid_grant"}, 400)
        access = secrets.token_urlsafe(24)
        self.provider.tokens[access] = dict(code.person)
        return self._json({"access_token": access, "token_type": "Bearer", "id_token": self.provider.id_token(code)})

    def _authorize(self, query: dict[str, str]) -> None:
        back: dict[str, str] = {"state": query.get("state", "")}
        if error := self.provider.faults.get("error"):
            back["error"] = error
        else:
            assert query["client_id"] == CLIENT_ID
            assert query["code_challenge_method"] == "S256"
            back["code"] = secrets.token_urlsafe(16)
            self.provider.codes[back["code"]] = Code(
                dict(self.provider.person), query.get("nonce", ""), query["code_challenge"], query["redirect_uri"]
            )
        self._redirect(f"{query['redirect_uri']}?{urlencode(back)}")

    def _json(self, body: dict[str, Any], status: int = 200) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _redirect(self, target: str) -> None:
        self.send_response(302)
        self.send_header("location", target)
        self.send_header("content-length", "0")
        self.end_headers()

    def _endless(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("connection", "close")
        self.end_headers()
        try:
            for _ in range(1000):
                self.wfile.write(b" " * 1024)
        except OSError:
            pass
        self.close_connection = True
