"""The queue serves many requests in turn, in full batches."""

import asyncio
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from serving import fake_clock
from serving.fake_clock import now
from serving.timed_queue import (
    ROWS,
    Search,
    ask,
    begin,
    document,
    on_fake_clock,
    refusal,
    serving,
)

from jaxformer.serving.batcher import Job


@on_fake_clock
async def test_64_clients_are_served_in_batches_above_8():
    """Clients with one sentence each, all at once."""
    search = Search()
    async with serving(search) as batcher:
        answers = await asyncio.gather(
            *(ask(batcher, [f"client {i}"]) for i in range(64))
        )
    assert [result for [result], _ in answers] == [f"CLIENT {i}" for i in range(64)]
    assert min(map(len, search.batches)) > 8


@on_fake_clock
async def test_a_word_beside_a_document_waits_at_most_two_batches():
    """A document of 1,000 longer sentences arrived first."""
    search = Search()
    async with serving(search) as batcher:
        long = await begin(batcher, document(1000), width=40)
        for arrival in (0.5, 10.0, 31.7):
            await asyncio.sleep(arrival - now())
            _, time = await ask(batcher, ["word"], width=1)
            assert time - arrival <= 2
        _, ended = await long
    assert ended <= 1000 / ROWS + 4


@on_fake_clock
async def test_a_word_beside_several_documents_waits_at_most_three_batches():
    """Documents of another kind, too, let a word go first."""
    async with serving(Search()) as batcher:
        keys = "plain", "plain", "rich"
        for number, key in enumerate(keys):
            await begin(batcher, document(300, f"document {number}"), key=key)
        await asyncio.sleep(5.5)
        _, time = await ask(batcher, ["word"])
        assert time - 5.5 <= 3


@on_fake_clock
async def test_a_document_has_half_of_a_batch_while_others_wait():
    """The other half is for clients that arrive later; the document gets the rest."""
    search = Search()
    async with serving(search) as batcher:
        await begin(batcher, ["first"])
        await begin(batcher, document(900))
        for number in range(30):
            await begin(batcher, [f"client {number}"])
        await asyncio.sleep(2.5)
    own = [sum(text.startswith("sentence") for text in b) for b in search.batches]
    assert own[1:3] == [8, 0]  # after the clients that arrived with it
    assert search.batches[3][:6] == [f"client {number}" for number in range(24, 30)]
    assert own[3] == 10  # nobody else waits


@on_fake_clock
async def test_a_client_that_fills_the_queue_keeps_no_other_from_it():
    """Whatever the others ask for, and though each of its requests is short."""
    async with serving(Search(), capacity=200) as batcher:
        many = [
            await begin(batcher, [f"greedy {number}"], client="greedy")
            for number in range(201)  # one is searched
        ]
        assert (await refusal(ask(batcher, ["more"], client="greedy"))).status == 503
        others = [
            asyncio.create_task(ask(batcher, ["word"], client=name, **options))
            for name, options in [
                ("like", {}),
                ("wide", {"width": 100}),
                ("rich", {"key": "rich"}),
            ]
        ]
        assert max(time for _, time in await asyncio.gather(*others)) <= 5
        assert (await asyncio.gather(*many))[-1][1] <= 18


@on_fake_clock
async def test_a_client_has_half_of_a_batch_while_others_wait():
    """Though each of its requests is short, and one of them leads."""
    search = Search()
    async with serving(search) as batcher:
        many = [
            await begin(batcher, [f"greedy {number}"], client="greedy")
            for number in range(41)  # one is searched
        ]
        await asyncio.gather(*many, ask(batcher, document(20), client="other"))
    shares = [sum("sentence" in text for text in own) for own in search.batches]
    assert shares[:4] == [0, 8, 8, 4]


@on_fake_clock
async def test_a_full_queue_has_room_for_the_shares_of_others():
    """Of two clients half; no client has more than all. Also for those prepared; a
    client that has none any more has no share. The error has the numbers of the client.
    """
    async with serving(Search(), capacity=12) as batcher:
        with batcher.reserved(1, "gone"):
            pass
        with batcher.reserved(12, "first"):
            refused = await refusal(ask(batcher, ["one"], client="first"))
            assert (refused.limit, refused.given) == (12, 13)
            with batcher.reserved(6, "second"):
                refused = await refusal(ask(batcher, ["one"], client="second"))
                assert refused.code == "queue"
                refused = await refusal(ask(batcher, document(5), client="third"))
                assert (refused.code, refused.limit, refused.given) == ("queue", 4, 5)
                assert refused.message.startswith(
                    "18 sentences wait, 0 of them yours: at most 4 of yours may wait"
                )
                assert (await ask(batcher, document(4), client="third"))[1] == 1
        await asyncio.gather(
            *(ask(batcher, document(6), client=name) for name in ("first", "second"))
        )


# Any requests: when they arrive, their kind, the widths of their sentences, and when
# the client leaves.
REQUESTS = st.lists(
    st.tuples(
        st.integers(0, 60),
        st.sampled_from(["plain", "rich"]),
        st.lists(st.sampled_from([1, 16, 17, 40, 128]), min_size=1, max_size=30),
        st.none() | st.integers(1, 40),
    ),
    max_size=12,
)


class Witness:
    """Knows what waits, by what clients say and what the search is given."""

    def __init__(self, rows):
        self.rows, self.waiting, self.batches = rows, {}, 0
        self.led_by = {}  # the last batch in which a request may have its first turn
        self.faults = []

    async def search(self, key, payloads):
        """Check a batch as it begins; what a search raises would not end the test."""
        try:
            self.check(key, payloads)
        except AssertionError as error:
            self.faults.append(error)
        await asyncio.sleep(1)
        return [("found", *payload) for payload in payloads]

    def check(self, key, payloads):
        self.batches += 1
        assert 0 < len(payloads) <= self.rows
        widest = 0
        for client, index in payloads:
            widest = max(widest, _size(self.waiting[client].pop(index)[1]))
        fitting = {
            client
            for client, jobs in self.waiting.items()
            if any(
                own == key and _size(width) <= widest for own, width in jobs.values()
            )
        }
        taken = Counter(client for client, _ in payloads)
        if len(payloads) < self.rows:
            assert not fitting, "a row is empty although a sentence fits"
        for client, count in taken.items():
            if count > (self.rows + 1) // 2:
                assert not fitting - {client}, "too many of one request"
            assert self.batches <= self.led_by.pop(client, self.batches)
        assert all(self.batches < last for last in self.led_by.values())

    async def client(self, batcher, number, arrival, key, widths, leaves):
        """Ask, and leave after some time; return whether all results are in order."""
        await asyncio.sleep(arrival / 8)
        jobs = [Job(key, w, (number, index)) for index, w in enumerate(widths)]
        ahead = sum(bool(own) for own in self.waiting.values())
        self.waiting[number] = {i: (key, width) for i, width in enumerate(widths)}
        self.led_by[number] = self.batches + ahead + 1
        try:
            async with asyncio.timeout(None if leaves is None else leaves / 8):
                results = await batcher.run(jobs, timeout=1e6)
        except TimeoutError:
            return leaves is not None
        finally:
            del self.waiting[number]
            self.led_by.pop(number, None)
        return results == [("found", number, index) for index in range(len(widths))]


def _size(width):
    return max(4, (width - 1).bit_length())


@settings(deadline=None)
@given(requests=REQUESTS, rows=st.integers(1, 6))
def test_any_requests_are_served_in_full_batches_in_turn(requests, rows):
    """No starvation: before a request has its turn, each request that waited when it
    arrived leads at most one batch. No row is empty while a sentence fits, and no
    request has more than half while another fits. Clients who leave affect no other.
    """

    async def main():
        witness = Witness(rows)
        async with serving(witness.search, rows=rows) as batcher:
            answers = await asyncio.gather(
                *(
                    witness.client(batcher, number, *request)
                    for number, request in enumerate(requests)
                )
            )
        assert not witness.faults
        assert all(answers)
        assert (batcher.waiting, batcher.active, witness.waiting) == (0, 0, {})

    fake_clock.run(main())
