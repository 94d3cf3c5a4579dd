"""`record`: a sentence as a JSON object. The keys may come in any order, which changes the place of everything else."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from dapd.lab.tasks.base import Example, Task
from dapd.lab.tasks.facts import AUTHORS, CAPITALS, DAYS, LANGUAGES
from dapd.lab.tasks.lexicon import NAMES, THINGS

ASK = "Write this as a JSON object:"

Values = dict[str, Any]
"""Key -> value: a text, a whole number, true or false, or a list of texts."""

PETS = ("dog", "cat", "rabbit", "horse", "hen", "goat", "parrot", "hamster")
GENRES = ("drama", "romance", "adventure", "satire", "horror", "history", "fantasy", "poetry")
MEALS = ("soup", "bread", "salad", "rice", "cheese", "cake", "fish", "tea")


def listed(words: list[str]) -> str:
    """Words as people list them: `a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _some(rng: random.Random, words: Iterable[str], most: int) -> list[str]:
    """One to `most` of the words."""
    return rng.sample(sorted(set(words)), rng.randint(1, most))


@dataclass(frozen=True)
class Kind:
    """A kind of record: how its values are drawn, and the sentence that tells them."""

    draw: Callable[[random.Random], Values]
    tell: Callable[[Values], str]


# Each kind is a pair of functions: one draws its values, the other tells them as a person would.


def _person(rng: random.Random) -> Values:
    return {
        "name": rng.choice(NAMES),
        "age": rng.randint(18, 89),
        "city": rng.choice(tuple(CAPITALS.values())),
        "languages": _some(rng, LANGUAGES.values(), 3),
        "married": rng.random() < 0.5,
        "pets": _some(rng, PETS, 2),
    }


def _tell_person(values: Values) -> str:
    pets = [f"a {pet}" for pet in values["pets"]]
    return (
        f"{values['name']} is {values['age']} years old, lives in {values['city']}, speaks "
        f"{listed(values['languages'])}, is {'' if values['married'] else 'not '}married and has {listed(pets)}."
    )


def _book(rng: random.Random) -> Values:
    title = rng.choice(tuple(AUTHORS))
    return {
        "title": title,
        "author": AUTHORS[title],
        "pages": rng.randint(80, 980),
        "genres": _some(rng, GENRES, 3),
        "available": rng.random() < 0.5,
    }


def _tell_book(values: Values) -> str:
    return (
        f"The book {values['title']} by {values['author']} has {values['pages']} pages, belongs to "
        f"{listed(values['genres'])} and is {'' if values['available'] else 'not '}available."
    )


def _order(rng: random.Random) -> Values:
    return {
        "customer": rng.choice(NAMES),
        "table": rng.randint(1, 40),
        "meals": _some(rng, MEALS, 3),
        "price": rng.randint(8, 95),
        "paid": rng.random() < 0.5,
        "day": rng.choice(DAYS),
    }


def _tell_order(values: Values) -> str:
    return (
        f"On {values['day']}, {values['customer']} at table {values['table']} orders {listed(values['meals'])} for "
        f"{values['price']} dollars and has {'' if values['paid'] else 'not '}paid."
    )


def _parcel(rng: random.Random) -> Values:
    sender, receiver = rng.sample(NAMES, 2)
    return {
        "sender": sender,
        "receiver": receiver,
        "contents": _some(rng, THINGS, 3),
        "weight": rng.randint(1, 30),
        "city": rng.choice(tuple(CAPITALS.values())),
        "fragile": rng.random() < 0.5,
    }


def _tell_parcel(values: Values) -> str:
    return (
        f"{values['sender']} sends {listed(values['contents'])} to {values['receiver']} in {values['city']}; the "
        f"parcel weighs {values['weight']} pounds and is {'' if values['fragile'] else 'not '}fragile."
    )


KINDS = (
    Kind(_person, _tell_person),
    Kind(_book, _tell_book),
    Kind(_order, _tell_order),
    Kind(_parcel, _tell_parcel),
)


def _unique(pairs: list[tuple[str, Any]]) -> Values:
    """Build an object from its pairs; a repeated key is an error."""
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a key stands twice")
    return values


def _typed(values: Values) -> dict[str, tuple[str, str]]:
    """Values that are equal only if their types are, too: 1 is not true, and 3 is not 3.0."""
    return {key: (type(value).__name__, repr(value)) for key, value in values.items()}


@dataclass(frozen=True)
class Records(Task):
    """People, books, orders and parcels."""

    name: str = "record"

    room = 96
    scored = "every key once, in any order, with its value; one space after commas and colons, as Python writes JSON"
    graph = None

    def draw(self, rng: random.Random) -> Example:
        kind = rng.choice(KINDS)
        values = kind.draw(rng)
        order = rng.sample(list(values), len(values))
        answer = json.dumps({key: values[key] for key in order})
        return Example(self.name, f"{ASK} {kind.tell(values)}", answer, {"values": values})

    def score(self, example: Example, text: str) -> float:
        try:
            record = json.loads(text, object_pairs_hook=_unique)
        except (ValueError, RecursionError):
            return 0.0
        if not isinstance(record, dict) or json.dumps(record) != text:
            return 0.0
        return float(_typed(record) == _typed(example.meta["values"]))

    def words(self) -> Iterable[str]:
        yield from (ASK, "true false", *CAPITALS.values(), *AUTHORS, *AUTHORS.values(), *LANGUAGES.values())
        yield " ".join((*NAMES, *PETS, *GENRES, *MEALS, *DAYS, *THINGS))
        rng = random.Random(0)
        for kind in KINDS:
            for _ in range(20):
                values = kind.draw(rng)
                yield kind.tell(values)
                yield json.dumps(values)
