"""The queue of sentences, on a simulated clock, with a search that takes a second."""

import asyncio
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from serving import fake_clock
from serving.fake_clock import now
from serving.timed_queue import (
    Search,
    ask,
    begin,
    document,
    on_fake_clock,
    refusal,
    serving,
)

from jaxformer.serving.batcher import Batcher, Job


@on_fake_clock
async def test_a_request_beyond_the_queue_is_refused_at_once():
    """503, with the time in which the queue empties; the queue stays usable."""
    async with serving(Search(), rows=4, capacity=10) as batcher:
        tasks = [await begin(batcher, document(4)), await begin(batcher, document(10))]
        assert (batcher.active, batcher.waiting) == (4, 10)
        refused = await refusal(ask(batcher, ["one more"]))
        assert (refused.status, refused.code, now()) == (503, "queue", 0)
        assert refused.retry_after == 1  # of an unknown speed
        await asyncio.sleep(1.5)
        assert batcher.waiting == 6
        refused = await refusal(ask(batcher, document(5)))
        assert (refused.retry_after, now()) == (2, 1.5)  # 6 sentences, 4 a second
        assert (await ask(batcher, ["fits"]))[0] == ["FITS"]
        await asyncio.gather(*tasks)
    assert (batcher.active, batcher.waiting) == (0, 0)


@on_fake_clock
async def test_what_waits_beyond_its_deadline_is_dropped():
    """504 at the deadline itself, not when the batch ends; the rest is not searched."""
    search = Search(seconds=10)
    async with serving(search, rows=2) as batcher:
        first = await begin(batcher, ["first"])
        late = await refusal(ask(batcher, document(3), timeout=4))
        assert (late.status, late.code, late.limit, now()) == (504, "deadline", 4, 4)
        assert batcher.waiting == 0
        await first
        assert (await ask(batcher, ["after"]))[1] == 20
    assert search.batches == [["first"], ["after"]]


@on_fake_clock
async def test_a_batch_that_raises_fails_only_the_guilty_sentence():
    """Its sentences are searched again one by one, once; the server lives."""
    search = Search()
    async with serving(search) as batcher:
        first = await begin(batcher, ["first"])
        tasks = [await begin(batcher, [text]) for text in ("good", "raise", "fine")]
        refused = await refusal(tasks[1])
        assert isinstance(refused.__cause__, RuntimeError)
        assert "secret" not in refused.message
        assert [(await task)[0] for task in (tasks[0], tasks[2])] == [
            ["GOOD"],
            ["FINE"],
        ]
        await first
        assert search.batches[1:] == [["good", "raise", "fine"]] + [
            [text] for text in ("good", "raise", "fine")
        ]
        refused = await refusal(ask(batcher, ["raise"]))
        assert search.batches[5:] == [["raise"]]  # it was the only one already
        assert (await ask(batcher, ["after"]))[0] == ["AFTER"]


@on_fake_clock
async def test_cancelling_the_server_ends_all_requests():
    """None waits without end, neither in a search nor in the queue."""
    batcher = Batcher(Search(), rows=2, capacity=100, now=now)
    server = asyncio.create_task(batcher.serve())
    tasks = [await begin(batcher, document(1)), await begin(batcher, document(6))]
    server.cancel()
    assert [(await refusal(task)).code for task in tasks] == ["draining"] * 2
    refused = await refusal(ask(batcher, ["late"]))
    assert (refused.status, refused.code, refused.retry_after) == (503, "draining", 1)


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
