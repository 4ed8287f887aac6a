"""Request bodies: whole, within their bound, out of their coding, and on to the account as it takes them."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from proxy import intake
from proxy.errors import InvalidEncoding, PayloadTooLarge
from tests.flows.tenants import Tenant, body
from tests.proxy.conftest import Gateway, is_clean, logged
from tests.proxy.test_unpacking import gzip_bomb, zstd_bomb
from tests.upstream import ScriptedUpstream

MakeTenant = Callable[..., Any]

SAMPLE = json.loads((Path(__file__).parent / "samples" / "codex_http_chatgpt_zstd_request.json").read_text())
LIMIT = 1000
PACK: dict[str, Callable[[bytes], bytes]] = {
    "zstd": zstandard.ZstdCompressor().compress,
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
}


def received(*parts: bytes, is_whole: bool = True) -> Callable[[], Any]:
    """An ASGI `receive` that brings these parts."""
    left: list[dict[str, Any]] = [
        {"type": "http.request", "body": part, "more_body": number < len(parts) or not is_whole}
        for number, part in enumerate(parts, start=1)
    ]
    left.append({"type": "http.disconnect"})

    async def receive() -> dict[str, Any]:
        return left.pop(0)

    return receive


async def read(*parts: bytes, encoding: str | None = None, length: str | None = None, is_whole: bool = True) -> intake.Body:
    headers = {"content-encoding": encoding, "content-length": length}
    given = {name: value for name, value in headers.items() if value is not None}
    return await intake.read_body(received(*parts, is_whole=is_whole), given, limit=LIMIT)


@pytest.mark.parametrize("encoding", [None, "", "identity", " Identity "])
async def test_a_plain_body_is_whole_and_in_no_coding(encoding: str | None) -> None:
    assert await read(b'{"a"', b"", b":1}", encoding=encoding) == intake.Body(b'{"a":1}')
    assert await read(b"", encoding=encoding) == intake.Body(b"")
    assert len((await read(b"x" * LIMIT, encoding=encoding)).data) == LIMIT


@pytest.mark.parametrize("encoding", ["zstd", "gzip", "x-gzip", " ZSTD "])
async def test_a_coded_body_is_known_as_it_came_too(encoding: str) -> None:
    plain = b'{"model":"gpt-5.5"}' * 20
    packed = PACK[encoding.strip().lower()](plain)
    found = await read(packed[:5], packed[5:6], packed[6:], encoding=encoding)
    assert found.data == plain
    assert found.coded is not None
    assert (found.coded.encoding, found.coded.data) == (encoding.strip().lower().removeprefix("x-"), packed)
    assert "gpt-5.5" not in repr(found)


@pytest.mark.parametrize("encoding", ["br", "deflate", "compress", "gzip, zstd", "zstd,zstd", "identity, gzip", "zstd;q=1"])
async def test_other_codings_and_stacked_ones_are_refused(encoding: str) -> None:
    with pytest.raises(InvalidEncoding, match="not taken here"):
        await read(zstandard.ZstdCompressor().compress(b"{}"), encoding=encoding)


@pytest.mark.parametrize("encoding", ["zstd", "gzip"])
async def test_a_body_that_is_not_what_it_says_is_refused(encoding: str) -> None:
    packed = PACK[encoding](b"{}" * 100)
    other = PACK["gzip" if encoding == "zstd" else "zstd"](b"{}")
    for bad in (b"", b'{"model":"gpt-5.5"}', packed[:-1], packed[:4], packed + b"{}", other):
        with pytest.raises(InvalidEncoding, match=f"not valid {encoding}"):
            await read(bad, encoding=encoding)


@pytest.mark.parametrize("encoding", [None, "zstd", "gzip"])
async def test_the_bound_is_of_the_plain_body_to_the_byte(encoding: str | None) -> None:
    pack = PACK[encoding] if encoding else lambda plain: plain
    assert len((await read(pack(bytes(LIMIT)), encoding=encoding)).data) == LIMIT
    with pytest.raises(PayloadTooLarge, match="larger than 1000 bytes"):
        await read(pack(bytes(LIMIT + 1)), encoding=encoding)


@pytest.mark.parametrize("encoding", [None, "zstd", "gzip"])
async def test_what_is_said_or_sent_beyond_the_bound_is_refused_before_it_is_read(encoding: str | None) -> None:
    with pytest.raises(PayloadTooLarge):
        await read(encoding=encoding, length="3000")
    padding = (b"\x50\x2a\x4d\x18" + (4000).to_bytes(4, "little") + bytes(4000)) if encoding == "zstd" else bytes(4000)
    with pytest.raises((PayloadTooLarge, InvalidEncoding) if encoding == "gzip" else PayloadTooLarge):
        await read(padding, encoding=encoding)


async def test_what_cannot_be_compressed_fits_as_it_does_plain() -> None:
    import random

    plain = random.Random(1).randbytes(LIMIT)
    for encoding in ("zstd", "gzip"):
        assert len(PACK[encoding](plain)) > LIMIT
        assert (await read(PACK[encoding](plain), encoding=encoding)).data == plain


@pytest.mark.parametrize("encoding", [None, "zstd"])
async def test_a_client_that_leaves_before_its_body_is_whole_is_gone(encoding: str | None) -> None:
    with pytest.raises(intake.ClientGone):
        await read(b"", encoding=encoding, is_whole=False)


# -------------------------------------------------------------------------------------------------------- to the wire


async def test_codex_body_goes_to_a_sign_in_account_compressed_as_it_came(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """N56: a signed-in Codex' request, zstd: what reaches the account is the same to the byte."""
    one: Tenant = await tenant(account="chatgpt")
    plain = json.dumps(SAMPLE["body_decoded"], ensure_ascii=False).encode()
    packed = zstandard.ZstdCompressor(level=3).compress(plain)
    replaced = ("authorization", "host", "content-length")
    headers = {name: value for name, value in SAMPLE["headers"] if name.lower() not in replaced} | one.headers
    got = await gateway.client.post(f"{gateway.url}{SAMPLE['path']}", headers=headers, content=packed)
    assert (got.status_code, got.headers["content-type"]) == (200, "text/event-stream")
    assert "content-encoding" not in got.headers
    [one_received] = upstream.received(token=one.upstream_token)
    assert one_received.body == packed
    assert [value for name, value in one_received.raw_headers if name == "content-encoding"] == ["zstd"]
    assert one_received.headers["content-length"] == str(len(packed))
    [row] = await logged(one)
    assert (row.model_asked, row.status, row.is_estimated) == ("gpt-5.4", "ok", False)
    assert row.input_tokens + row.cached_input_tokens == len(plain) // 4


async def test_a_body_that_must_change_goes_on_plain(gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream) -> None:
    """N56: only the documented fields change, which a compressed body cannot show."""
    one: Tenant = await tenant(account="chatgpt")
    plain = body(store=True, max_output_tokens=100)
    for encoding in ("zstd", "gzip"):
        headers = {**one.headers, "content-encoding": encoding}
        got = await gateway.client.post(f"{gateway.url}/v1/responses", headers=headers, content=PACK[encoding](plain))
        assert got.status_code == 200
    for one_received in upstream.received(token=one.upstream_token):
        assert one_received.body == plain.replace(b'"store": true, "max_output_tokens": 100', b'"store": false')
        assert "content-encoding" not in one_received.headers
    await logged(one, 2)


async def test_an_api_key_account_gets_the_body_plain(gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream) -> None:
    one: Tenant = await tenant()
    plain = body()
    for encoding in ("zstd", "gzip", "x-gzip", "identity"):
        headers = {**one.headers, "content-encoding": encoding}
        packed = PACK.get(encoding, bytes)(plain)
        got = await gateway.client.post(f"{gateway.url}/v1/responses", headers=headers, content=packed)
        assert got.status_code == 200
    found = upstream.received(token=one.upstream_token)
    assert [one_received.body for one_received in found] == [plain] * 4
    assert all("content-encoding" not in one_received.headers for one_received in found)
    await logged(one, 4)


@pytest.mark.parametrize(("encoding", "bomb"), [("zstd", zstd_bomb), ("gzip", gzip_bomb)])
async def test_a_bomb_is_refused_and_nothing_is_held_or_sent(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, encoding: str, bomb: Callable[[], bytes]
) -> None:
    """N70"""
    one: Tenant = await tenant()
    headers = {**one.headers, "content-encoding": encoding}
    got = await gateway.client.post(f"{gateway.url}/v1/responses", headers=headers, content=bomb())
    assert (got.status_code, got.json()["error"]["code"]) == (400, "payload_too_large")
    broken = await gateway.client.post(f"{gateway.url}/v1/responses", headers=headers, content=PACK[encoding](body())[:-2])
    error = broken.json()["error"]
    assert (broken.status_code, error["type"], error["code"]) == (400, "invalid_request_error", "invalid_encoding")
    assert upstream.received(token=one.upstream_token) == []
    assert await is_clean(one)
    await logged(one, 0)
