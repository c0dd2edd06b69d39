"""The text that tokens add to a prompt, as they come, up to stop strings."""

from __future__ import annotations

from collections.abc import Sequence

from jaxformer.data.vocabulary import Vocabulary


class AddedText:
    """The text that tokens add to a prompt, token by token.

    Each time only the last tokens are decoded, those before them at most once more:
    what a token reads as depends on whether it is the first, and on its neighbours only
    within a character.
    """

    def __init__(self, vocabulary: Vocabulary, prompt: Sequence[int]) -> None:
        """Begin after a prompt."""
        self._vocabulary = vocabulary
        # In some vocabularies the beginning of a text is the end, which ends decoding.
        self._tokens = [token for token in prompt if token != vocabulary.eos_id]
        self._known = self._decode(self._tokens)
        self._read = len(self._tokens)

    def add(self, token: int) -> str:
        """Return the text that is certain with this token, after that of the calls
        before: not that of a character whose last bytes are still to come.
        """
        self._tokens.append(token)
        text = self._decode(self._tokens)
        if text.endswith("\ufffd") or not text.startswith(self._known):
            return ""
        new, self._known = text[len(self._known) :], text
        last, self._read = self._tokens[self._read :], len(self._tokens)
        alone = self._decode(last)
        if new.strip() and alone.strip():  # a text of its own, which others follow
            self._tokens, self._known, self._read = last, alone, len(last)
        return new

    def rest(self, tokens: Sequence[int] = ()) -> str:
        """Return the text that is not returned yet, with that of further tokens."""
        return self._decode([*self._tokens, *tokens])[len(self._known) :]

    def _decode(self, tokens: list[int]) -> str:
        return self._vocabulary.decode(tokens, lines=True)


def cut(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    """Return the text before the stop string that is complete first, and whether there
    is one.

    Example:
        >>> cut("one, two. three", [".", "two"])
        ('one, ', True)
    """
    found = [(text.find(each) + len(each), len(each)) for each in stop if each in text]
    if not found:
        return text, False
    end, length = min(found, key=lambda place: (place[0], -place[1]))
    return text[: end - length], True


def find_held(text: str, stop: Sequence[str]) -> int:
    """Count the last characters of a text that may begin a stop string."""
    return max(
        (
            size
            for each in stop
            for size in range(1, len(each))
            if text.endswith(each[:size])
        ),
        default=0,
    )
