"""Long "find the key" prompts in the vocabulary of the packaged tiny model; pure Python, no tensor.

A prompt is a stream of filler sentences in which notes are hidden. For each of a few names there are three notes, each
with another key, and only the one marked `confirmed` is true. The prompt ends by asking for the key of one name.

Example, cut down:
    hill river slow . rumored key of alice 30 08 71 . stone wind . confirmed key of alice 47 12 85 . storm .
    outdated key of alice 92 53 66 . question : key of alice
    The answer is `47 12 85`.
"""

import random
from collections.abc import Iterator
from itertools import islice

NUMBERS = tuple(f"{number:02d}" for number in range(100))
MARKERS = ("confirmed", "rumored", "outdated")
TRUE_MARKER = MARKERS[0]
NAMES = tuple(
    "alice bruno clara david elena felix greta hugo irene jonas karin louis marta nadia oscar paula quinn ramon sofia "
    "tomas ursula viktor wanda yusuf".split()
)
FILLERS = tuple(
    "cedar cloud copper coral cotton dawn desert distant ember falcon feather fern field flint forest fountain "
    "garden gentle glacier granite harbor hill island ivory lantern lily maple marble meadow mirror mist moss "
    "narrow ocean old orchard pebble pine quiet rain river road silver slow stone storm stream summer sunset "
    "thunder valley velvet violet willow wind winter".split()
)
STRUCTURE = (".", ":", "question", "key", "of")
KEY_NUMBERS = 3
NAMES_PER_PROMPT = 4

_QUESTION_TOKENS = 5
_NOTE_TOKENS = 5 + KEY_NUMBERS
_SENTENCE_TOKENS = (5, 12)


def words() -> tuple[str, ...]:
    """Every word that a prompt or an answer can hold, in a fixed order; each is one token."""
    return (*NUMBERS, *STRUCTURE, *MARKERS, *NAMES, *FILLERS)


def shortest_prompt(names: int = NAMES_PER_PROMPT) -> int:
    """The tokens of a prompt that is all notes and no filler."""
    return names * len(MARKERS) * _NOTE_TOKENS + _QUESTION_TOKENS


def find_key_rows(
    *, rows: int, prompt_tokens: int, seed: int, names: int = NAMES_PER_PROMPT
) -> Iterator[dict[str, str]]:
    """Yield rows of a prompts file, the same ones for the same arguments.

    Args:
        rows: how many rows.
        prompt_tokens: the exact length of every prompt; a token is a word, words are separated by one space.
        seed: of the whole sequence; row `i` does not depend on `rows`.
        names: how many names have notes in a prompt; each has one note per marker.

    Yields:
        `prompt`, the text, and `answer`, the numbers of the confirmed key, separated by spaces.
    """
    shortest = shortest_prompt(names)
    if prompt_tokens < shortest:
        raise ValueError(f"prompt_tokens is {prompt_tokens}, but the notes and the question alone take {shortest}")
    rng = random.Random(seed)
    for _ in range(rows):
        yield _row(rng, prompt_tokens, names)


def _row(rng: random.Random, prompt_tokens: int, names: int) -> dict[str, str]:
    chosen = rng.sample(NAMES, names)
    # No number stands in two notes of a prompt, so the first one says which note an answer was read from.
    numbers = iter(rng.sample(NUMBERS, names * len(MARKERS) * KEY_NUMBERS))
    notes: list[tuple[str, ...]] = []
    answers: dict[str, str] = {}
    for name in chosen:
        for marker in MARKERS:
            key = tuple(islice(numbers, KEY_NUMBERS))
            notes.append((marker, "key", "of", name, *key, "."))
            if marker == TRUE_MARKER:
                answers[name] = " ".join(key)
    rng.shuffle(notes)
    asked = rng.choice(chosen)
    filler = _filler_sentences(rng, prompt_tokens - shortest_prompt(names))
    depths = sorted(rng.choices(range(len(filler) + 1), k=len(notes)))
    pieces: list[str] = []
    begin = 0
    for depth, note in zip(depths, notes, strict=True):
        for sentence in filler[begin:depth]:
            pieces.extend(sentence)
        pieces.extend(note)
        begin = depth
    for sentence in filler[begin:]:
        pieces.extend(sentence)
    pieces.extend(("question", ":", "key", "of", asked))
    return {"prompt": " ".join(pieces), "answer": answers[asked]}


def _filler_sentences(rng: random.Random, tokens: int) -> list[tuple[str, ...]]:
    """Sentences of filler words that hold exactly `tokens` tokens together, full stops included."""
    sentences: list[tuple[str, ...]] = []
    while tokens > 0:
        length = min(rng.randint(*_SENTENCE_TOKENS), tokens)
        sentences.append((*rng.choices(FILLERS, k=length - 1), "."))
        tokens -= length
    return sentences
