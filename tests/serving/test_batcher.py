"""The queue of sentences, on a clock of its own, with a search that takes a second."""

import asyncio
import contextlib
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import fake_clock
from serving.fake_clock import now

from jaxformer.serving.batcher import Batch, Batcher, Job
from jaxformer.serving.errors import ServingError

ROWS = 16


class Search:
    """Writes payloads in capitals, a second a batch, and keeps the batches."""

    def __init__(self, seconds=1.0):
        self.seconds, self.batches = seconds, []

    async def __call__(self, key, payloads):
        self.batches.append(list(payloads))
        await asyncio.sleep(self.seconds)
        if "raise" in payloads:
            raise RuntimeError(f"secret {payloads}")
        return [
            ValueError(text) if text == "bad" else text.upper() for text in payloads
        ]


@contextlib.asynccontextmanager
async def serving(search, *, rows=ROWS, capacity=1024, observe=None):
    """Run a batcher for the block, and let it finish what waits."""
    batcher = Batcher(search, rows=rows, capacity=capacity, now=now, observe=observe)
    server = asyncio.create_task(batcher.serve())
    try:
        yield batcher
    finally:
        batcher.drain()
        await server


def jobs_of(texts, width=5, key="plain"):
    return [Job(key, width, text) for text in texts]


def document(length, name="sentence"):
    return [f"{name} {number}" for number in range(length)]


async def ask(batcher, texts, *, timeout=1e6, width=5, key="plain", done=None):
    """Return the results of a request, and the time at which they came."""
    jobs = jobs_of(texts, width, key)
    return await batcher.run(jobs, timeout=timeout, done=done), now()


async def begin(batcher, texts, **options):
    """Start a request and let it enter the queue, and a batch if none is running."""
    task = asyncio.create_task(ask(batcher, texts, **options))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task


def on_fake_clock(test):
    """Run a test that is a coroutine."""

    def run():
        fake_clock.run(test())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@on_fake_clock
async def test_a_lone_request_begins_at_once():
    """No waiting time: the answer takes what its search takes."""
    async with serving(Search()) as batcher:
        await asyncio.sleep(7)
        assert await ask(batcher, ["word"]) == (["WORD"], 8)


@on_fake_clock
async def test_results_are_in_the_order_of_the_jobs():
    """Widths decide which batch a sentence is in, not its place in the answer."""
    async with serving(Search(), rows=4) as batcher:
        jobs = [Job("plain", 1 + 31 * (i % 3), f"s{i}") for i in range(20)]
        found = []
        results = await batcher.run(
            jobs, timeout=100, done=lambda index, text: found.append((index, text))
        )
    assert results == [f"S{i}" for i in range(20)]
    assert sorted(found) == list(enumerate(results))
    assert found != sorted(found)


@on_fake_clock
async def test_results_arrive_while_others_wait():
    """What a stream shows: the first sentence after one batch."""
    async with serving(Search(), rows=2) as batcher:
        times = []
        await ask(batcher, document(6), done=lambda *_: times.append(now()))
    assert times == [1, 1, 2, 2, 3, 3]


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
    """A document of 1,000 sentences came first, and its sentences are longer."""
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
    """The other half is for clients that come later; the document gets what is left."""
    search = Search()
    async with serving(search) as batcher:
        await begin(batcher, ["first"])
        await begin(batcher, document(900))
        for number in range(30):
            await begin(batcher, [f"client {number}"])
        await asyncio.sleep(2.5)
    own = [sum(text.startswith("sentence") for text in b) for b in search.batches]
    assert own[1:3] == [8, 0]  # behind the clients that came with it
    assert search.batches[3][:6] == [f"client {number}" for number in range(24, 30)]
    assert own[3] == 10  # nobody else waits


@on_fake_clock
async def test_a_sentence_is_batched_with_its_like():
    """A narrow batch is not made wide; a wide one takes what is narrower along."""
    search = Search()
    async with serving(search, rows=4) as batcher:
        await begin(batcher, ["first"])
        await begin(batcher, ["narrow"], width=16)
        await begin(batcher, ["wide 1"], width=33)
        await begin(batcher, ["narrow 2", "narrow 3"], width=3)
        await begin(batcher, ["wide 2"], width=64)
        await begin(batcher, ["other"], key="rich")
    assert search.batches == [
        ["first"],
        ["narrow", "narrow 2", "narrow 3"],
        ["wide 1", "wide 2"],
        ["other"],
    ]
    search.batches.clear()
    async with serving(search, rows=4) as batcher:
        await begin(batcher, ["first"])
        await begin(batcher, ["wide 1"], width=33)
        await begin(batcher, ["narrow"])
        await begin(batcher, ["wide 2"], width=64)
    assert search.batches[1] == ["wide 1", "wide 2", "narrow"]


@on_fake_clock
async def test_rows_may_depend_on_the_key():
    """A call of the model itself is a batch of one."""
    search = Search()
    async with serving(search, rows=lambda key: {"call": 1}.get(key, 3)) as batcher:
        await asyncio.gather(
            ask(batcher, ["a", "b", "c"]), ask(batcher, ["d", "e"], key="call")
        )
    assert search.batches == [["a", "b", "c"], ["d"], ["e"]]


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
async def test_what_is_being_prepared_has_room():
    """Others are refused before they are prepared; more than all has room once."""
    async with serving(Search(), rows=4, capacity=10) as batcher:
        with batcher.reserved(8):
            refused = await refusal(ask(batcher, document(3)))
            assert (refused.status, refused.code, now()) == (503, "queue", 0)
            with pytest.raises(ServingError), batcher.reserved(3):
                raise AssertionError
            with batcher.reserved(2):
                pass
            assert (await ask(batcher, document(2)))[1] == 1
        with batcher.reserved(11):
            assert (await refusal(ask(batcher, ["one"]))).code == "queue"
        assert (await ask(batcher, document(10)))[1] == 4


@pytest.mark.parametrize("seconds", [1e-3, 1e4])
def test_retry_after_is_between_a_second_and_a_minute(seconds):
    """However fast or slow the last batch was."""

    async def main():
        async with serving(Search(seconds), rows=1, capacity=1) as batcher:
            await ask(batcher, ["first"], timeout=1e6)
            await begin(batcher, ["running"], timeout=1e6)
            await begin(batcher, ["waits"], timeout=1e6)
            return (await refusal(ask(batcher, ["word"]))).retry_after

    assert fake_clock.run(main()) == (1 if seconds < 1 else 60)


@on_fake_clock
async def test_a_request_larger_than_the_queue_is_never_tried_again():
    """413 says the limit and the number, for no wait would help."""
    async with serving(Search(), capacity=10) as batcher:
        refused = await refusal(ask(batcher, document(11)))
        assert refused.status == 413
        assert refused.retry_after is None
        assert (refused.limit, refused.given) == (10, 11)
        assert len((await ask(batcher, document(10)))[0]) == 10


@on_fake_clock
async def test_no_jobs_have_no_results():
    """A text of white space needs no search, even of a full queue."""
    async with serving(Search(), capacity=1) as batcher:
        assert await batcher.run([], timeout=1) == []


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
async def test_what_is_being_searched_at_its_deadline_is_answered():
    """The work is nearly done; only what waits is dropped."""
    async with serving(Search(seconds=10)) as batcher:
        assert await ask(batcher, ["word"], timeout=4) == (["WORD"], 10)


@on_fake_clock
async def test_a_cancelled_request_frees_its_place():
    """Its waiting sentences leave the queue at once."""
    search = Search()
    async with serving(search, rows=4, capacity=8) as batcher:
        first = await begin(batcher, ["first"])
        gone = await begin(batcher, document(8))
        gone.cancel()
        await asyncio.wait([gone])
        assert (gone.cancelled(), batcher.waiting, now()) == (True, 0, 0)
        assert (await ask(batcher, document(8, "next")))[1] == 3
        await first
    assert search.batches[1:] == [document(8, "next")[:4], document(8, "next")[4:]]


@on_fake_clock
async def test_a_cancelled_request_never_raises_in_the_batch_of_others():
    """The batch that it shares goes on, and its own results are dropped."""
    search = Search()
    async with serving(search) as batcher:
        first = await begin(batcher, ["first"])
        gone = await begin(batcher, ["gone 1", "gone 2"])
        other = await begin(batcher, ["other"])
        await asyncio.sleep(1.5)
        assert search.batches[1] == ["gone 1", "gone 2", "other"]
        gone.cancel()
        assert (await other)[0] == ["OTHER"]
        assert (await first)[0] == ["FIRST"]
    with pytest.raises(asyncio.CancelledError):
        await gone


@on_fake_clock
async def test_a_bad_sentence_fails_only_its_own_request():
    """The search returns a fault in its place."""
    async with serving(Search()) as batcher:
        first = await begin(batcher, ["first"])
        tasks = [await begin(batcher, [text]) for text in ("good", "bad", "fine")]
        refused = await refusal(tasks[1])
        assert (refused.status, refused.code) == (500, "internal")
        assert isinstance(refused.__cause__, ValueError)
        assert [(await task)[0] for task in (first, tasks[0], tasks[2])] == [
            ["FIRST"],
            ["GOOD"],
            ["FINE"],
        ]


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
        assert search.batches[5:] == [["raise"]]  # it was alone already
        assert (await ask(batcher, ["after"]))[0] == ["AFTER"]


@on_fake_clock
async def test_a_client_who_left_is_not_searched_for_again():
    """While the sentences of a failed batch are searched one by one."""
    search = Search()
    async with serving(search) as batcher:
        await begin(batcher, ["first"])
        guilty = await begin(batcher, ["raise"])
        gone = await begin(batcher, ["gone"])
        other = await begin(batcher, ["other"])
        await asyncio.sleep(2.5)
        gone.cancel()
        await refusal(guilty)
        assert (await other)[0] == ["OTHER"]
    assert search.batches[2:] == [["raise"], ["other"]]


@on_fake_clock
async def test_a_failed_sentence_takes_the_rest_of_its_request_along():
    """What cannot be answered any more is not searched."""
    search = Search()
    async with serving(search, rows=2) as batcher:
        await refusal(ask(batcher, ["bad", *document(9)]))
        assert batcher.waiting == 0
    assert len(search.batches) == 1


@on_fake_clock
async def test_an_error_of_the_search_for_the_client_reaches_him():
    """Such as a sentence that is too long."""
    error = ServingError(422, "sentence_too_long", "a sentence has too many tokens")

    async def search(key, payloads):
        return [error if text == "long" else text for text in payloads]

    async with serving(search) as batcher:
        task = await begin(batcher, ["short"])
        assert await refusal(ask(batcher, ["long"])) is error
        assert (await task)[0] == ["short"]


@on_fake_clock
async def test_a_search_that_returns_too_little_is_a_fault():
    """Results are never given to the wrong sentence."""

    async def search(key, payloads):
        return list(payloads)[1:] if len(payloads) > 1 else list(payloads)

    async with serving(search) as batcher:
        assert (await ask(batcher, ["a", "b"]))[0] == ["a", "b"]


@on_fake_clock
async def test_what_a_callback_raises_ends_only_its_own_request():
    """A client of a stream who is gone, or a fault in writing to him."""

    def write(index, result):
        raise ConnectionError("gone")

    async with serving(Search()) as batcher:
        first = await begin(batcher, ["first"])
        task = await begin(batcher, ["other"])
        refused = await refusal(ask(batcher, document(3), done=write))
        assert isinstance(refused.__cause__, ConnectionError)
        assert (await task)[0] == ["OTHER"]
        await first


@on_fake_clock
async def test_draining_answers_what_waits_and_refuses_what_comes():
    """At the end of the server no accepted request is lost."""
    batcher = Batcher(Search(), rows=2, capacity=100, now=now)
    server = asyncio.create_task(batcher.serve())
    task = await begin(batcher, document(6))
    batcher.drain()
    refused = await refusal(ask(batcher, ["late"]))
    assert (refused.status, refused.code, refused.retry_after) == (503, "draining", 1)
    assert len((await task)[0]) == 6
    await server
    assert now() == 3


@on_fake_clock
async def test_cancelling_the_server_ends_all_requests():
    """None waits for ever, whether it was being searched or waiting."""
    batcher = Batcher(Search(), rows=2, capacity=100, now=now)
    server = asyncio.create_task(batcher.serve())
    tasks = [await begin(batcher, document(1)), await begin(batcher, document(6))]
    server.cancel()
    assert [(await refusal(task)).code for task in tasks] == ["draining"] * 2
    assert (await refusal(ask(batcher, ["late"]))).code == "draining"


@on_fake_clock
async def test_batches_are_observed():
    """For metrics: key, widths, waiting times and duration."""
    seen = []
    async with serving(Search(), observe=seen.append) as batcher:
        await begin(batcher, ["first"], width=3)
        await asyncio.sleep(0.25)
        await begin(batcher, ["a", "b"], width=20, key="rich")
    assert seen == [
        Batch("plain", [3], [0.0], 1.0),
        Batch("rich", [20, 20], [0.75, 0.75], 1.0),
    ]


async def refusal(awaitable):
    """Return the error that something awaited raises."""
    with pytest.raises(ServingError) as raised:
        await awaitable
    return raised.value


# Any requests: when they come, their kind, the widths of their sentences, and when the
# client leaves.
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
        """Ask, and leave after some time; return whether all came, in order."""
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
    came leads at most one batch. No row is empty while a sentence fits, no request has
    more than half while another fits, and clients who leave disturb nobody.
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
