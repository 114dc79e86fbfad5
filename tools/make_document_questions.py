"""Write documents in which a few facts are hidden, and questions about them, for training and held out.

    python tools/make_document_questions.py --out runs/smollm2/questions

The documents are paragraphs of the language reference that comes with Python (`pydoc_data.topics`), drawn and shuffled;
between them stand facts of one form about several places, and the question asks for one of them:

    The access code of the harbour office is 48213.

Writes `train.jsonl` and `held_out.jsonl` with rows `{"prompt": [messages], "documents": ["documents/train_0001.txt"],
"answer": "48213"}`. The same arguments give the same files with the same Python; the two sets share no paragraph, no
place and no code.
"""

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from pydoc_data.topics import topics

QUALITIES = tuple(
    "harbour north granite copper silver upper western river market castle forest garden bridge canal island meadow "
    "orchard southern lower eastern hill mountain valley coastal".split()
)
BUILDINGS = tuple(
    "office mill library warehouse laboratory archive museum workshop clinic school theatre station".split()
)
FACT = "The access code of the {place} is {code}."
QUESTION = "What is the access code of the {place}? Answer with the code only."
CODES = range(10000, 100000)

# Paragraphs of prose: so many words at least, and so large a share of letters and spaces.
PARAGRAPH_WORDS = 25
LETTERS = 0.92
# One in so many of the paragraphs and places is held out.
HELD_OUT_SHARE = 3


@dataclass(frozen=True)
class Question:
    """A document, a question about it, and the answer, which stands in it once."""

    document: str
    question: str
    answer: str


@dataclass(frozen=True)
class Pool:
    """What the documents of one set are made of.

    Args:
        name: of the set; its files begin with it.
        paragraphs: texts.
        places: names; a document takes some of them.
        codes: numbers; none is used twice.
    """

    name: str
    paragraphs: list[str]
    places: list[str]
    codes: list[int]


def paragraphs() -> list[str]:
    """The prose of Python's language reference, a paragraph a line, in a fixed order."""
    found = set()
    for topic in topics.values():
        for block in topic.split("\n\n"):
            # The reference marks words by asterisks and quotes.
            text = " ".join(block.replace("*", "").replace('"', "").split())
            if len(text.split()) >= PARAGRAPH_WORDS and _is_prose(text):
                found.add(text)
    return sorted(found)


def _is_prose(text: str) -> bool:
    letters = sum(character.isalpha() or character == " " for character in text)
    return text[0].isupper() and text.endswith(".") and letters > LETTERS * len(text)


def pools(rng: random.Random, *, train: int, held_out: int, facts: int) -> tuple[Pool, Pool]:
    """Deal paragraphs, places and codes out to the two sets, so that they share nothing.

    Args:
        rng: the order in which they are dealt.
        train: questions of the first set.
        held_out: of the second.
        facts: of one document.
    """
    texts, places = paragraphs(), [" ".join(words) for words in product(QUALITIES, BUILDINGS)]
    rng.shuffle(texts)
    rng.shuffle(places)
    codes = rng.sample(CODES, (train + held_out) * facts)
    text, place, code = len(texts) // HELD_OUT_SHARE, len(places) // HELD_OUT_SHARE, held_out * facts
    return (
        Pool("train", texts[text:], places[place:], codes[code:]),
        Pool("held_out", texts[:text], places[:place], codes[:code]),
    )


def document(rng: random.Random, pool: Pool, *, words: int, facts: Sequence[str]) -> str:
    """Paragraphs of at least so many words in all, with the facts between them at random places."""
    texts: list[str] = []
    for text in rng.sample(pool.paragraphs, len(pool.paragraphs)):
        if sum(len(chosen.split()) for chosen in texts) >= words:
            break
        texts.append(text)
    for fact in facts:
        texts.insert(rng.randint(0, len(texts)), fact)
    return "\n\n".join(texts) + "\n"


def questions(rng: random.Random, pool: Pool, *, count: int, words: int, facts: int) -> Iterator[Question]:
    """Make the questions of one set."""
    for index in range(count):
        places = rng.sample(pool.places, facts)
        codes = pool.codes[index * facts : (index + 1) * facts]
        sentences = [FACT.format(place=place, code=code) for place, code in zip(places, codes, strict=True)]
        yield Question(
            document=document(rng, pool, words=words, facts=sentences),
            question=QUESTION.format(place=places[0]),
            answer=str(codes[0]),
        )


def write(folder: Path, pool: Pool, made: Iterator[Question]) -> None:
    """Write a set: its documents, and the file of its rows."""
    documents = folder / "documents"
    documents.mkdir(parents=True, exist_ok=True)
    with (folder / f"{pool.name}.jsonl").open("w", encoding="utf-8") as rows:
        for number, item in enumerate(made, start=1):
            name = f"{pool.name}_{number:04d}.txt"
            (documents / name).write_text(item.document, encoding="utf-8")
            row = {
                "prompt": [{"role": "user", "content": "{documents}\n\n" + item.question}],
                "documents": [f"documents/{name}"],
                "answer": item.answer,
            }
            rows.write(json.dumps(row) + "\n")


def main() -> None:
    """Write both sets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--train", type=int, default=160, help="questions to train on")
    parser.add_argument("--held-out", type=int, default=64, help="questions held out")
    parser.add_argument("--words", type=int, default=1600, help="of the paragraphs of a document, at least")
    parser.add_argument("--facts", type=int, default=4, help="facts in a document, one of which is asked for")
    parser.add_argument("--seed", type=int, default=1, help="of both sets")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    counts = {"train": options.train, "held_out": options.held_out}
    for pool in pools(rng, **counts, facts=options.facts):
        made = questions(rng, pool, count=counts[pool.name], words=options.words, facts=options.facts)
        write(options.out, pool, made)
    print(f"{options.train} questions to train on and {options.held_out} held out in {options.out}")


if __name__ == "__main__":
    main()
