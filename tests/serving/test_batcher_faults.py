"""The queue and its faults: of a sentence, of a search and of a client."""

import asyncio

import pytest
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

from jaxformer.serving.batcher import Batcher
from jaxformer.serving.errors import ServingError


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
    """The batch that it shares continues, and its own results are dropped."""
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
    """The search returns a fault for this sentence."""
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
        assert search.batches[5:] == [["raise"]]  # it was the only one already
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
    """A client of a stream who is gone, or a fault in writing to them."""

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
async def test_cancelling_the_server_ends_all_requests():
    """None waits without end, neither in a search nor in the queue."""
    batcher = Batcher(Search(), rows=2, capacity=100, now=now)
    server = asyncio.create_task(batcher.serve())
    tasks = [await begin(batcher, document(1)), await begin(batcher, document(6))]
    server.cancel()
    assert [(await refusal(task)).code for task in tasks] == ["draining"] * 2
    refused = await refusal(ask(batcher, ["late"]))
    assert (refused.status, refused.code, refused.retry_after) == (503, "draining", 1)
