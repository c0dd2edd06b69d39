"""The queue of sentences, on a simulated clock, with a search that takes a second."""

import asyncio

import pytest
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

from jaxformer.serving.batcher import Batch, Job
from jaxformer.serving.errors import ServingError


@on_fake_clock
async def test_a_lone_request_begins_at_once():
    """No waiting time: the answer takes what its search takes."""
    async with serving(Search()) as batcher:
        await asyncio.sleep(7)
        assert await ask(batcher, ["word"]) == (["WORD"], 8)


@on_fake_clock
async def test_results_are_in_the_order_of_the_jobs():
    """Widths decide which batch a sentence is in, not its position in the answer."""
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
async def test_a_sentence_is_batched_with_its_like():
    """A narrow batch is not made wide; a wide one includes narrower sentences."""
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
    """Others are refused before they are prepared."""
    async with serving(Search(), rows=4, capacity=10) as batcher:
        with batcher.reserved(8):
            refused = await refusal(ask(batcher, document(3)))
            assert (refused.status, refused.code, now()) == (503, "queue", 0)
            with pytest.raises(ServingError), batcher.reserved(3):
                raise AssertionError
            with batcher.reserved(2):
                pass
            assert (await ask(batcher, document(2)))[1] == 1
        with pytest.raises(ServingError, match="at most 10"), batcher.reserved(11):
            raise AssertionError
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
