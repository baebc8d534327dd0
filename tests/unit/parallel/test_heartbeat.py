"""Datagrams say the same on both ends, and strangers are not heard."""

from dataclasses import replace

import pytest

from slipstream.parallel.heartbeat import (
    SENTENCE_BYTES,
    Beat,
    Failure,
    Kind,
    Peer,
    Post,
    State,
    decode,
    encode,
    new_token,
    open_socket,
    this_peer,
)
from slipstream.parallel.stamps import Stage, Stamps

TOKEN = bytes(16)
BEAT = Beat(rank=3, sequence=9, cycle=17, stage=Stage.VERIFY, active=True, still_s=0.25, state=State.ALIVE)


def failed(sentence: str) -> Beat:
    failure = Failure(kind=Kind.GONE, origin=1, reporter=3, sentence=sentence)
    return replace(BEAT, state=State.FAILED, failure=failure)


@pytest.mark.parametrize("beat", [BEAT, replace(BEAT, state=State.LEAVING), failed("rank 1 has ended")])
def test_a_beat_survives_the_way(beat):
    assert decode(encode(beat, TOKEN), TOKEN) == beat


def test_a_long_sentence_is_cut_between_characters():
    beat = decode(encode(failed("\u00e4" * 600 + "x"), TOKEN), TOKEN)
    assert beat.failure.sentence == "\u00e4" * (SENTENCE_BYTES // 2)
    beat = decode(encode(failed("x" + "\u00e4" * 600), TOKEN), TOKEN)
    assert beat.failure.sentence == "x" + "\u00e4" * ((SENTENCE_BYTES - 1) // 2)


def test_a_datagram_of_another_group_is_ignored():
    assert decode(encode(BEAT, new_token()), TOKEN) is None


@pytest.mark.parametrize("length", [0, 5, 16, 30])
def test_a_short_datagram_is_ignored(length):
    assert decode(encode(BEAT, TOKEN)[:length], TOKEN) is None


def test_a_datagram_with_values_of_no_meaning_is_ignored():
    datagram = bytearray(encode(BEAT, TOKEN))
    datagram[16 + 2 + 4 + 8] = 200  # the stage
    assert decode(bytes(datagram), TOKEN) is None
    assert decode(encode(failed("x"), TOKEN)[:-4], TOKEN) is None


def test_a_peer_survives_the_store():
    sock = open_socket("127.0.0.1")
    peer = this_peer(2, sock, Stamps())
    sock.close()
    assert Peer.from_text(peer.as_text()) == peer
    assert peer.address[1] > 0


def test_posts_of_one_group_reach_each_other_and_a_dead_end_is_no_error():
    socks = [open_socket("127.0.0.1") for _ in range(3)]
    peers = [this_peer(rank, sock, Stamps()) for rank, sock in enumerate(socks)]
    posts = [Post(sock, TOKEN, peers) for sock in socks]
    stranger = Post(open_socket("127.0.0.1"), new_token(), peers)
    posts[2].close()
    stranger.send(BEAT)
    posts[0].send(BEAT)
    posts[0].send(replace(BEAT, sequence=10))
    assert [beat.sequence for beat in posts[1].receive()] == [9, 10]
    assert list(posts[1].receive()) == []
    assert list(posts[2].receive()) == []
    for post in (*posts[:2], stranger):
        post.close()
