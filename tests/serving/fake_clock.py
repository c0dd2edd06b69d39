"""An event loop whose clock jumps to the next event: nothing waits."""

import asyncio
import selectors


class _Selector(selectors.SelectSelector):
    def __init__(self):
        super().__init__()
        self.now = 0.0

    def select(self, timeout=None):
        """Let the time pass instead of waiting."""
        assert timeout is not None, "every task waits, and nothing will wake one"
        self.now += timeout
        return super().select(0)


def run(main):
    """Run a coroutine. `asyncio.sleep` and time-outs take the time of the loop only."""
    selector = _Selector()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main)


def now():
    """Return the time of the running loop."""
    return asyncio.get_running_loop().time()
