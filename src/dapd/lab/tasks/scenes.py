"""`scene`: a few sentences about two characters, from a probabilistic grammar with agreement.

Verbs agree with their subject (the fox sees, the foxes see), pronouns with whom they stand for (she, him, them), and
a character is `a fox` when it first appears and `the fox` from then on. `He`, `she`, `it` and `they` stand for the
subject of the sentence before; `him`, `her`, `it` and `them` for the other character.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dapd.lab.tasks.base import Example, Task
from dapd.lab.tasks.grammar import Node, accepts, chain, draw, even, falling, leaves, maybe, weighed
from dapd.lab.tasks.lexicon import ADJECTIVES, CHARACTERS, PLACES, VERBS
from dapd.lab.tasks.questions import capital

ASK = "Write a short text about"

OPENERS = ("One day, ", "Once, ", "Long ago, ", "In the morning, ")
LINKS = ("Then ", "Later ", "After that, ", "At night, ")
RESTS = ("sleep", "laugh", "smile", "dance", "sing", "wait")
"""Verbs without an object, in the plural form; for a single character an -s is added."""
WHERE = ("near", "behind", "beside")
HOW = ("gladly", "quietly", "often", "slowly", "again")
FRIENDS = ("", " They become friends.", " In the end, they are friends.", " From then on, they are good friends.")
OBJECTS = {"he": "him", "she": "her", "it": "it", "they": "them"}


@dataclass(frozen=True)
class Character:
    """One character, or two of a kind."""

    noun: str
    adjective: str
    """The adjective when the character first appears; empty: none."""
    plural: bool

    @property
    def bare(self) -> str:
        return CHARACTERS[self.noun].plural if self.plural else self.noun

    @property
    def first(self) -> str:
        """How the character is named when it first appears."""
        words = f"{self.adjective} {self.bare}".strip()
        if self.plural:
            return f"two {words}"
        return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"

    @property
    def pronoun(self) -> str:
        return "they" if self.plural else CHARACTERS[self.noun].pronoun


DEED = {plural: even(*(verb if plural else third for verb, third in VERBS.items())) for plural in (False, True)}
REST = {plural: even(*(verb if plural else f"{verb}s" for verb in RESTS)) for plural in (False, True)}
"""The verbs without an object for a single character (False) and for two (True); `DEED` has those with an object."""
PLACE = chain(" ", even(*WHERE), " the ", even(*PLACES))
ADVERB = even(*(f" {adverb}" for adverb in HOW))


def texts(pair: Sequence[Character]) -> Node:
    """All texts about two characters: who meets whom, one to three sentences more, perhaps how it ends."""
    sentences = {(subject, last): _sentence(pair, subject, last) for subject in (0, 1) for last in (0, 1)}
    # The rest of the text for either subject of the sentence before; it is built from the end of the text backwards.
    follows: list[Node] = ["", ""]
    for chance in (0.55, 0.55, 1.0):
        follows = [
            maybe(
                chance,
                weighed([chain(sentences[next_, last], follows[next_]) for next_ in (last, 1 - last)], (0.6, 0.4)),
            )
            for last in (0, 1)
        ]
    beginnings = [chain(_meeting(pair[who], pair[1 - who]), follows[who]) for who in (0, 1)]
    return chain(even(*beginnings), falling(*FRIENDS))


def _meeting(who: Character, whom: Character) -> Node:
    """The first sentence, in which both characters appear."""
    told = chain(" ", DEED[who.plural], f" {whom.first}", maybe(0.5, PLACE), ".")
    return chain(falling(capital(who.first), chain(even(*OPENERS), who.first)), told)


def _sentence(pair: Sequence[Character], subject: int, last: int) -> Node:
    """A subject, a verb that agrees with it, an object or a place; `last` is the subject of the sentence before."""
    who = pair[subject]
    whom = pair[1 - subject]
    names = (who.pronoun, f"the {who.bare}") if subject == last else (f"the {who.bare}",)
    named = falling(falling(*map(capital, names)), chain(even(*LINKS), falling(*names)))
    someone = falling(f"the {whom.bare}", OBJECTS[whom.pronoun])
    acts = chain(" ", DEED[who.plural], " ", someone, maybe(0.3, ADVERB))
    rests = chain(" ", REST[who.plural], maybe(0.6, PLACE))
    return chain(" ", named, weighed((acts, rests), (0.7, 0.3)), ".")


@dataclass(frozen=True)
class Scenes(Task):
    """Two characters and what they do."""

    name: str = "scene"

    room = 64
    scored = "the text belongs to the grammar: both characters, agreement of verbs and pronouns, a and the"
    graph = None

    def draw(self, rng: random.Random) -> Example:
        nouns = rng.sample(tuple(CHARACTERS), 2)
        adjectives = [rng.choice(ADJECTIVES) if rng.random() < 0.6 else "" for _ in nouns]
        pair = [Character(n, a, rng.random() < 0.4) for n, a in zip(nouns, adjectives, strict=True)]
        prompt = f"{ASK} {pair[0].first} and {pair[1].first}."
        meta = {"characters": [list(vars(one).values()) for one in pair]}
        return Example(self.name, prompt, draw(texts(pair), rng), meta)

    def score(self, example: Example, text: str) -> float:
        pair = [Character(*values) for values in example.meta["characters"]]
        return float(accepts(texts(pair), text))

    def words(self) -> Iterable[str]:
        yield ASK
        nouns = list(CHARACTERS)
        for noun, other in zip(nouns, nouns[1:] + nouns[:1], strict=True):
            for plural in (False, True):
                pair = (Character(noun, "odd", plural), Character(other, "shy", not plural))
                yield from leaves(texts(pair))
        yield " ".join(ADJECTIVES)
