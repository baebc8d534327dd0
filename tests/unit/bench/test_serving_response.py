"""HTTP/1.1 in portions: whatever the cuts, the same response; what is no HTTP is said to be none."""

import pytest

from slipstream.bench.serving.connections import address_of
from slipstream.bench.serving.response import BadResponse, ResponseReader

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Name: a:b\r\n\r\n"
    b"5\r\nhello\r\n7;ext=1\r\n, world\r\n0\r\nTrailer: x\r\n\r\n"
)
SIZED = b"HTTP/1.1 404 Not Found\r\ncontent-length: 12\r\n\r\nhello, world"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n" + SIZED


@pytest.mark.parametrize("wire", [CHUNKED, SIZED, INTERIM], ids=["chunked", "sized", "interim"])
@pytest.mark.parametrize("portion", [1, 2, 3, 7, 1000])
def test_a_response_is_the_same_however_it_is_cut(wire: bytes, portion: int) -> None:
    reader = ResponseReader()
    for start in range(0, len(wire), portion):
        assert not reader.done
        reader.feed(wire[start : start + portion], float(start))
    assert reader.done
    assert reader.may_be_kept
    assert reader.response.body == b"hello, world"
    times = [at_s for at_s, _ in reader.response.pieces]
    assert times == sorted(times)
    assert reader.response.status == (200 if wire is CHUNKED else 404)


def test_names_of_headers_are_small_and_values_keep_their_colons() -> None:
    reader = ResponseReader()
    reader.feed(CHUNKED, 0.0)
    assert reader.response.headers == {"transfer-encoding": "chunked", "x-name": "a:b"}


def test_a_body_of_unknown_length_ends_with_the_connection() -> None:
    reader = ResponseReader()
    assert not reader.feed(b"HTTP/1.1 200 OK\r\n\r\nhello, ", 1.0)
    assert not reader.feed(b"world", 2.0)
    assert reader.close()
    assert reader.response.body == b"hello, world"
    assert not reader.may_be_kept


def test_a_body_that_is_cut_short_is_not_whole() -> None:
    reader = ResponseReader()
    reader.feed(CHUNKED[:-20], 0.0)
    assert not reader.close()


def test_a_connection_that_is_to_be_closed_is_not_kept() -> None:
    reader = ResponseReader()
    assert reader.feed(b"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 0\r\n\r\n", 0.0)
    assert not reader.may_be_kept


@pytest.mark.parametrize(
    "wire",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 fine\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nmany\r\n",
    ],
)
def test_what_is_no_http_is_refused(wire: bytes) -> None:
    with pytest.raises(BadResponse):
        ResponseReader().feed(wire, 0.0)


def test_addresses_are_read_with_their_defaults() -> None:
    here = address_of("localhost:8000/v1/")
    assert (here.host, here.port, here.secure, here.path, here.name) == ("localhost", 8000, False, "", "localhost:8000")
    there = address_of("https://api.example.com/llm/v1")
    assert (there.port, there.secure, there.path, there.name) == (443, True, "/llm", "api.example.com")
    assert address_of("http://[::1]:8000").name == "[::1]:8000"


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:port", "http://x/?a=1", "http://me:secret@x"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="such as http://localhost:8000"):
        address_of(url)
