"""`sentence`: a sentence with given words, from a small grammar with agreement (dog barks, dogs bark; a king, an
uncle), and its acceptor."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from dapd.lab.tasks.base import Example, Task, pieces
from dapd.lab.tasks.lexicon import ADJECTIVES, ADVERBS, NOUNS, PLACES, PREPOSITIONS, VERBS

ASK = "Write a sentence with the words:"

SINGULAR_DETERMINERS = ("a", "the", "this", "every")
"""Words that may stand before a singular noun."""
PLURAL_DETERMINERS = ("the", "some", "these", "many")
"""Words that may stand before a plural noun."""

_SINGULAR = {plural: noun for noun, plural in NOUNS.items()}
_LEMMA = {third: verb for verb, third in VERBS.items()}


@dataclass(frozen=True)
class Parsed:
    """A piece of a sentence: how far it reached, which words it used, whether its head was plural."""

    end: int
    used: tuple[str, ...]
    plural: bool


def noun_phrase(words: list[str], start: int) -> Parsed | None:
    """Parse a determiner, at most one adjective and a noun from index `start` on; None where there are none."""
    if start >= len(words):
        return None
    determiner = words[start]
    at = start + 1
    used: tuple[str, ...] = ()
    if at < len(words) and words[at] in ADJECTIVES:
        used = (words[at],)
        at = at + 1
    noun = words[at] if at < len(words) else ""
    if noun in NOUNS:
        wanted = "an" if words[start + 1][0] in "aeiou" else "a"
        right = determiner == wanted if determiner in ("a", "an") else determiner in SINGULAR_DETERMINERS
        return Parsed(at + 1, (*used, noun), False) if right else None
    if noun in _SINGULAR and determiner in PLURAL_DETERMINERS:
        return Parsed(at + 1, (*used, _SINGULAR[noun]), True)
    return None


def content_words(text: str) -> tuple[str, ...] | None:
    """The content words (base forms) of a sentence of the grammar; None for any other text.

    sentence: noun phrase, verb that agrees, noun phrase, [preposition `the` place], [adverb], full stop.
    """
    words = [piece.removeprefix(" ") for piece in pieces(text)]
    if len(words) < 2 or words[-1] != "." or "".join(pieces(text)) != text or not words[0][0].isupper():
        return None
    words = [words[0].lower(), *words[1:-1]]
    if " ".join(words).capitalize() + "." != text:
        return None
    subject = noun_phrase(words, 0)
    if subject is None or subject.end >= len(words):
        return None
    verb = words[subject.end]
    lemma = verb if subject.plural and verb in VERBS else _LEMMA.get(verb) if not subject.plural else None
    thing = noun_phrase(words, subject.end + 1)
    if lemma is None or thing is None:
        return None
    tail = _tail(words[thing.end :])
    return None if tail is None else (*subject.used, lemma, *thing.used, *tail)


def _tail(words: list[str]) -> tuple[str, ...] | None:
    used: tuple[str, ...] = ()
    if len(words) >= 3 and words[0] in PREPOSITIONS and words[1] == "the" and words[2] in PLACES:
        used = (words[2],)
        words = words[3:]
    if words and words[0] in ADVERBS:
        used = (*used, words[0])
        words = words[1:]
    return None if words else used


def _phrase(noun: str, adjective: str | None, rng: random.Random) -> tuple[str, bool]:
    """A noun phrase, and whether it is plural."""
    plural = rng.random() < 0.5
    tail = [*([adjective] if adjective else []), NOUNS[noun] if plural else noun]
    determiner = rng.choice(PLURAL_DETERMINERS if plural else SINGULAR_DETERMINERS)
    if determiner == "a" and tail[0][0] in "aeiou":
        determiner = "an"
    return " ".join([determiner, *tail]), plural


@dataclass(frozen=True)
class Sentences(Task):
    """A sentence from two nouns, a verb and up to four more words."""

    name: str = "sentence"

    room = 32
    scored = "the sentence belongs to the grammar and uses every word"
    graph = None

    def draw(self, rng: random.Random) -> Example:
        nouns = rng.sample(tuple(NOUNS), 2)
        verb = rng.choice(tuple(VERBS))
        adjectives = rng.sample(ADJECTIVES, rng.randint(0, 2))
        place = [rng.choice(PLACES)] if rng.random() < 0.5 else []
        adverb = [rng.choice(ADVERBS)] if rng.random() < 0.5 else []
        words = [*nouns, verb, *adjectives, *place, *adverb]
        rng.shuffle(words)
        given: list[str | None] = [*adjectives, *[None] * (2 - len(adjectives))]
        rng.shuffle(given)
        rng.shuffle(nouns)
        subject, plural = _phrase(nouns[0], given[0], rng)
        thing, _ = _phrase(nouns[1], given[1], rng)
        where = [f"{rng.choice(PREPOSITIONS)} the {place[0]}"] if place else []
        answer = " ".join([subject, verb if plural else VERBS[verb], thing, *where, *adverb]).capitalize() + "."
        return Example(self.name, f"{ASK} {', '.join(words)}", answer, {"words": words})

    def score(self, example: Example, text: str) -> float:
        used = content_words(text)
        return float(used is not None and set(example.meta["words"]) <= set(used))

    def words(self) -> Iterable[str]:
        forms = [*NOUNS, *NOUNS.values(), *VERBS, *VERBS.values(), *ADJECTIVES, *PLACES, *PREPOSITIONS, *ADVERBS]
        small = ["an", *SINGULAR_DETERMINERS, *PLURAL_DETERMINERS]
        determiners = [*small, *(word.capitalize() for word in small)]
        return [ASK, *forms, *determiners]
