"""What accompanies the loop: the record on disk, the lines for a person, the signals."""

import json
import os
import signal

import pytest

from jaxformer.training.hooks import Lines, Log, StopSignal, append, clock, describe, make_display, rewind


@pytest.fixture
def open_log(tmp_path):
    """Give a function that opens the record of this test's directory; all are closed in the end."""
    logs = []

    def open_(step, evaluated):
        logs.append(Log(tmp_path, step, evaluated))
        return logs[-1]

    yield open_
    for log in logs:
        log.close()


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_record_is_cut_back_to_where_the_run_stands(tmp_path, open_log):
    """Lines of training beyond the step go, and lines of validation and samples beyond the last evaluation, even at the
    step itself: all will be written again (statement 119).
    """
    log = open_log(0, 0)
    for step in (5, 10, 15):
        log.write(step, {"train/loss": 1.0 / step})
        if step % 10 == 0:
            log.write(step, {"valid/nll": 2.0 / step})
            log.write_samples(step, [{"translation": "Käse\u2028"}, {"translation": "x"}])
    open_log(10, 0)
    assert lines(tmp_path / "metrics.jsonl") == [{"step": 5, "train/loss": 0.2}, {"step": 10, "train/loss": 0.1}]
    assert lines(tmp_path / "samples.jsonl") == []


def test_a_record_that_fits_stays(tmp_path, open_log):
    """Nothing is lost of what the checkpoint knows of, in any alphabet."""
    log = open_log(0, 0)
    log.write(10, {"train/loss": 1.0})
    log.write(10, {"valid/nll": 2.0})
    log.write_samples(10, [{"translation": "Käse \u2028 \x85 東京"}])
    before = [(tmp_path / name).read_bytes() for name in ("metrics.jsonl", "samples.jsonl")]
    open_log(12, 10)
    assert [(tmp_path / name).read_bytes() for name in ("metrics.jsonl", "samples.jsonl")] == before


def test_a_cut_line_goes(tmp_path):
    """A line that a killed process did not finish is removed, wherever it was cut."""
    path = tmp_path / "metrics.jsonl"
    record = json.dumps({"step": 2, "train/loss": 0.5})
    for cut in range(len(record)):
        path.write_text(json.dumps({"step": 1}) + "\n" + record[:cut])
        rewind(path, lambda line: line["step"] <= 2)
        assert path.read_text() == json.dumps({"step": 1}) + "\n"


def test_no_record_yet(tmp_path):
    """Where there is no record, cutting it back makes none."""
    rewind(tmp_path / "metrics.jsonl", lambda line: True)
    assert list(tmp_path.iterdir()) == []


def test_a_line_is_one_json_object(tmp_path):
    """Each line is one object, whatever its strings hold."""
    for text in ("a\nb", '"', "\u2028"):
        append(tmp_path / "samples.jsonl", {"step": 1, "source": text})
    written = (tmp_path / "samples.jsonl").read_text(encoding="utf-8").split("\n")
    assert [json.loads(line)["source"] for line in written[:-1]] == ["a\nb", '"', "\u2028"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_noted_and_ends_nothing(number):
    """The first signal is noted by name; afterwards the handlers are those of before (statement 123)."""
    before = signal.getsignal(number)
    with StopSignal() as stop:
        assert not stop
        os.kill(os.getpid(), number)
        assert stop
        assert stop.received == number.name
    assert signal.getsignal(number) == before


def test_a_second_interrupt_ends_at_once():
    """Who presses Ctrl-C twice does not want to wait; a second SIGTERM changes nothing."""
    with StopSignal() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert stop.received == "SIGTERM"


def test_lines_where_there_is_no_terminal(capsys):
    """Without a terminal there is a plain line on standard error for each entry of the log, and for nothing else."""
    display = make_display(10, 0)
    assert isinstance(display, Lines)
    display.advance(1, {})
    display.advance(2, {"train/loss": 1.25, "train/perplexity": 3.5, "train/tokens_per_second": 1234.4})
    display.say("done")
    display.close()
    out, err = capsys.readouterr()
    assert out == ""
    first, second = err.splitlines()
    assert first.startswith("step 2/10  loss 1.250  ppl 3.50  1,234 tokens/s  left 0:")
    assert second == "done"


def test_words_for_a_person():
    """Only what a person looks at is described, and durations read as on a clock."""
    assert describe({"train/tokens": 5.0, "valid/bleu": 27.34}) == "valid BLEU 27.34"
    assert [clock(seconds) for seconds in (0, 59.6, 61, 3_661)] == ["0:00", "1:00", "1:01", "1:01:01"]


def test_a_line_cut_off_within_a_character(tmp_path):
    """A line that a killed process or a full disk cut in the middle of an umlaut is dropped (statement 122)."""
    path = tmp_path / "samples.jsonl"
    whole = '{"step": 1, "translation": "für"}\n'.encode()
    path.write_bytes(whole + whole[: whole.index("ü".encode()) + 1])
    rewind(path, lambda line: True)
    assert path.read_bytes() == whole
