"""Which addresses are the internet's."""

import ipaddress

import pytest

from proxy import origins
from routing import addresses
from routing.errors import AddressRefused


@pytest.mark.parametrize(
    "address",
    ["1.1.1.1", "93.184.216.34", "2606:4700:4700::1111", "64:ff9b::101:101", "::ffff:1.1.1.1", "2002:101:101::1"],
)
def test_public(address: str) -> None:
    assert addresses.is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "100.100.100.200", "0.0.0.0",
        "192.0.0.192", "198.18.0.1", "192.0.2.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "168.63.129.16",
        "::", "::1", "fe80::1", "fd00:ec2::254", "fec0::1", "ff02::1", "2001:db8::1", "100::1",
    ],
)  # fmt: skip
def test_not_public(address: str) -> None:
    """N72: of a machine, a link, a company, a provider, a cloud, or of nobody."""
    assert not addresses.is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address", ["::ffff:10.0.0.1", "::10.0.0.1", "64:ff9b::a00:1", "64:ff9b:1::a00:1", "2002:a00:1::1", "2001:0:a00:1::1"]
)
def test_one_that_wraps_a_private_address_is_not_public(address: str) -> None:
    """N72: mapped, compatible, by NAT64, its local prefix, 6to4, Teredo."""
    assert not addresses.is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "url",
    [
        "https://8.8.8.8/a b", "https://8.8.8.8/v\u00e4g", "https://8.8.8.8/\u3000x", "https://8.8.8.8/a\x01b", "https://8.8.8.8/\x7f",
        "https://8.8.8.8/a\nb", "https://8.8.8.8/a\tb", "https://8.8.8.8/v1?", "https://8.8.8.8/v1?a=b", "https://8.8.8.8/v1#",
        "https://8.8.8.8/v1#a", "https://8.8.8.8\\@8.8.4.4", "https://b\u00fccher.example", "https://a:b@8.8.8.8", "ftp://8.8.8.8",
    ],
)  # fmt: skip
def test_what_no_request_could_be_sent_to_is_no_base_url(url: str) -> None:
    with pytest.raises(AddressRefused):
        addresses.check(url)


@pytest.mark.parametrize("url", ["https://8.8.8.8", "HTTPS://8.8.8.8:8443/v1/", " http://8.8.8.8/a%20b/v1 "])
def test_what_is_taken_can_be_asked(url: str) -> None:
    origin, target = origins.split(addresses.check(url) + "/responses")
    assert origin.host == "8.8.8.8"
    assert target.endswith(b"/responses")
